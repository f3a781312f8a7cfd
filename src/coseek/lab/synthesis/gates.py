"""Gates: what a question made from a chain must pass. Each is a function of its own with a verdict that is stored.

    follows      the answer follows from the passages of the path, and not with one of them withheld
    closed_book  it does not follow without search
    one_search   it does not follow from one search with the question (from two hops on)
    edge         a solver, where one is given, answers it in some of its tries, and not in nearly all

Without a model a reader of phrases reads the passages; with one (`Generator`), it must answer right from the path and
wrong with each passage withheld, without any passage, and from the first passages of the one search.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from coseek.core.files import JsonObject
from coseek.data.answers import cover_match
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.generator import Generator, ReadingInput
from coseek.lab.synthesis.graph import Chain, HopGraph
from coseek.lab.synthesis.names import key_of

GATES = ("follows", "closed_book", "one_search")
"""Those that a model reads, too."""
_GUESSED = 0.2
"""Share of the names of a phrase from which the most frequent one can be guessed."""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a question passes, and why not; `said` is what a model answered."""

    passed: bool
    reason: str = ""
    said: tuple[str, ...] = ()
    fault: bool = False
    """A part failed: this says nothing of the question."""

    def to_json(self) -> JsonObject:
        row: JsonObject = {"passed": self.passed}
        if self.reason:
            row["reason"] = self.reason
        return row | ({"said": list(self.said)} if self.said else {})


PASSED = GateVerdict(True)


def follows(graph: HopGraph, chain: Chain) -> GateVerdict:
    """The first gate, by rules: the phrases lead from the first name to the answer alone, over the passages of the path
    and not with one withheld; no other passage of the corpus makes one of them needless."""
    rows = {hop.row for hop in chain}
    if read(graph, chain, rows) != {chain[-1].target}:
        return GateVerdict(False, "the path leads to another answer")
    if any(read(graph, chain, rows - {row}) for row in rows):
        return GateVerdict(False, "a passage of the path is not needed")
    if not all(map(graph.is_only_one, chain)):
        return GateVerdict(False, "another passage may answer, too")
    return PASSED if graph.is_exclusive(chain) else GateVerdict(False, "another passage holds two names of the path")


def read(graph: HopGraph, chain: Chain, rows: Set[int]) -> set[str]:
    """The answers to the question of a chain that follow from the passages of `rows`: all names that its phrases lead
    to, in order, from its first name."""
    names = {chain[0].source}
    for hop in chain:
        stated = (
            one for row in sorted(rows) for one in graph.stated(row)
            if one.phrase == hop.phrase and (one.key if hop.back else one.subject) in names
        )  # fmt: skip
        names = {one.subject if hop.back else one.key for one in stated}
    return names


def closed_book(graph: HopGraph, chain: Chain, question: str) -> GateVerdict:
    """The second gate, by rules: neither the answer nor a name between stands in the question, and the answer is not
    the one that the last phrase mostly has."""
    asked = f" {key_of(question)} "
    for hop in chain:
        if any(f" {key_of(name)} " in asked for name in graph.names_of(hop.target)):
            return GateVerdict(False, "the question holds a name that it asks for")
    last = chain[-1]
    if not last.back:
        style = graph.counts[last.phrase]
        guess, times = style.most_common(1)[0]
        if guess == last.target and times > max(1, _GUESSED * style.total()):
            return GateVerdict(False, "the answer is the most frequent one of its phrase")
    return PASSED


def one_search(graph: HopGraph, chain: Chain, question: str, depth: int) -> GateVerdict:
    """The third gate, by rules: one BM25 search does not find the passage with the answer. A question of one hop is
    answered by one search by its nature: it passes, and the verdict says whether it is."""
    if graph.corpus[chain[-1].row].id not in found_by(graph, question, depth):
        return PASSED
    return GateVerdict(len(chain) == 1, f"the passage with the answer is among the first {depth}")


def found_by(graph: HopGraph, question: str, depth: int) -> list[str]:
    """The ids of the passages that one BM25 search finds, best first."""
    return [hit.passage.id for hit in graph.bm25.search([question], depth)[0]]


def edge(solved: float | None, least: float, most: float) -> GateVerdict:
    """The last gate, with a solver: the share of its tries that are right is from `least` to `most`."""
    if solved is None:
        return GateVerdict(False, "the solver failed")
    told = f"solved in {solved:.0%} of the tries" if least <= solved <= most else ""
    return GateVerdict(bool(told), told or f"the solver {'seldom' if solved < least else 'nearly always'} answers it")


def model_verdicts(
    reader: Generator,
    questions: Sequence[Question],
    paths: Sequence[Sequence[Passage]],
    found: Sequence[Sequence[Passage]],
) -> list[dict[str, GateVerdict]]:
    """The verdicts of a model for each question: its path, and what one search finds. A fault passes nothing."""
    asked: list[ReadingInput] = []
    for question, path, hits in zip(questions, paths, found, strict=True):
        parts = [path, *([*path[:at], *path[at + 1 :]] for at in range(len(path)))] if len(path) > 1 else [path]
        asked += [ReadingInput(question.question, tuple(part)) for part in (*parts, (), hits)]
    outputs = iter(reader.answer([reader.context(one) for one in asked]))
    verdicts: list[dict[str, GateVerdict]] = []
    for question, path in zip(questions, paths, strict=True):
        count = len(path) + 1 if len(path) > 1 else 1
        read_path, nothing, once = [next(outputs) for _ in range(count)], next(outputs), next(outputs)
        said = [output.answer or "" for output in (*read_path, nothing, once)]
        right = [cover_match(one, question.answers) for one in said]
        if any(output.fault for output in (*read_path, nothing, once)):
            verdicts.append({name: GateVerdict(False, "the reader failed", fault=True) for name in GATES})
            continue
        whole, withheld = right[0], any(right[1:count])
        reason = "" if whole and not withheld else "a passage of the path is not needed" if whole else "read otherwise"
        single = len(path) == 1
        verdicts.append({
            "follows": GateVerdict(not reason, reason, tuple(said[:count])),
            "closed_book": GateVerdict(not right[-2], "answered without search" if right[-2] else "", (said[-2],)),
            "one_search": GateVerdict(
                single or not right[-1], "answered after one search" if right[-1] else "", (said[-1],)
            ),
        })  # fmt: skip
    return verdicts
