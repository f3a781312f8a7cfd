"""Gates: what a question must pass. Each verdict is stored.

Of a chain of the hop graph and its question, by rules:

    follows      each passage of the path is needed: no other one holds two of its names
    closed_book  it does not follow without search
    one_search   it does not follow from one search with the question (from two hops on)

Of a question that a language model proposed, by rules:

    verbatim        the answer stands in the last passage letter by letter, and is short
    self_contained  the question is one, and it does not point at a passage
    closed_book     the question holds neither the answer nor the name between the passages
    both            the first passage alone does not answer (two passages)
    one_search      a search with the question does not find the last passage (two passages)
    retrievable     it finds the first one

With a model (`Generator`), which must answer right from the path and wrong with each passage withheld, without any
passage, and from the first passages of the one search: `follows`, `closed_book` and `one_search` again. With a solver,
`edge`: it answers the question in some of its tries, and not in nearly all.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.run_questions import row_seed
from coseek.core.files import JsonObject
from coseek.data.answers import cover_match, exact_match
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.generator import Generator, ReadingInput
from coseek.lab.synthesis.graph import Chain, HopGraph
from coseek.lab.synthesis.proposals import Proposal
from coseek.retrieval.lexical.analyzer import has_words, words
from coseek.retrieval.retriever import Retriever

GATES = ("follows", "closed_book", "one_search")
"""Those that a model reads, too."""
_GUESSED = 0.2
"""Share of the names of a phrase from which the most frequent one can be guessed."""
LONGEST_ANSWER = 12
"""Words."""
_QUESTION_WORDS = (3, 60)
_MARKS = ("?", "？", "؟")
_POINTING = re.compile(
    r"\b(?:(?:this|the|these|both|above|given|following|first|second|provided)\s+(?:passages?|texts?|documents?|"
    r"articles?|excerpts?|paragraphs?|snippets?)|according\s+to\s+(?:it|this)|(?:mentioned|described|stated|listed)\s+"
    r"(?:above|here|below)|passages?\s+[12])\b",
    re.IGNORECASE,
)
FINDABLE = 20
"""Passages of the search that must find the first passage."""


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


def _gate(reason: str, is_failed: bool = True) -> GateVerdict:
    return GateVerdict(not is_failed, reason if is_failed else "")


Verdicts = dict[str, GateVerdict]


def verdicts_of(gates: Iterator[tuple[str, GateVerdict]]) -> Verdicts:
    """The verdicts up to the first gate that is not passed."""
    verdicts: Verdicts = {}
    for name, verdict in gates:
        verdicts[name] = verdict
        if not verdict.passed:
            break
    return verdicts


def chain_gates(graph: HopGraph, chain: Chain, question: str, depth: int) -> Iterator[tuple[str, GateVerdict]]:
    """The gates of a chain and its question."""
    yield "follows", _gate("another passage holds two names of the path", not graph.is_exclusive(chain))
    if has_words(question, *(name for hop in chain for name in graph.names_of(hop.key))):
        yield "closed_book", _gate("the question holds a name that it asks for")
    counts = graph.counts[chain[-1].phrase]
    guess, times = counts.most_common(1)[0]
    guessed = guess == chain[-1].key and times > max(1, _GUESSED * counts.total())
    yield "closed_book", _gate("the answer is the most frequent one of its phrase", guessed)
    is_found = graph.corpus[chain[-1].row].id in found_by(graph, question, depth)
    reason = f"the passage with the answer is among the first {depth}" if is_found else ""
    yield "one_search", GateVerdict(len(chain) == 1 or not is_found, reason)  # one hop takes one search by its nature


def proposal_gates(graph: HopGraph, proposal: Proposal, depth: int) -> Iterator[tuple[str, GateVerdict]]:
    """The gates of a question that a model proposed."""
    path, answer = [graph.corpus[row] for row in proposal.rows], proposal.answer
    stands = bool(answer) and answer in " ".join(path[-1].text.split()) and has_words(path[-1].text, answer)
    yield "verbatim", _gate("the answer does not stand in the passage", not stands)
    yield "verbatim", _gate("the answer is too long", len(words(answer)) > LONGEST_ANSWER)
    least, most = _QUESTION_WORDS
    asks = proposal.question.endswith(_MARKS) and least <= len(words(proposal.question)) <= most
    yield "self_contained", _gate("it is no question", not asks)
    yield "self_contained", _gate("the question points at its passage", bool(_POINTING.search(proposal.question)))
    leaks = has_words(proposal.question, answer, proposal.link)
    yield "closed_book", _gate("the question holds what it asks for", leaks)
    found = found_by(graph, proposal.question, max(depth, FINDABLE))
    if len(path) > 1:
        is_answered = has_words(f"{path[0].title} {path[0].text}", answer)
        yield "both", _gate("the first passage holds the answer", is_answered)
        is_found = path[-1].id in found[:depth]
        yield "one_search", _gate(f"the passage with the answer is among the first {depth}", is_found)
    yield "retrievable", _gate(f"no passage of the path is among the first {FINDABLE}", path[0].id not in found)


def found_by(graph: HopGraph, question: str, depth: int) -> list[str]:
    """The ids of the passages that one BM25 search finds, best first."""
    return [hit.passage.id for hit in graph.bm25.search([question], depth)[0]]


def model_verdicts(
    reader: Generator,
    questions: Sequence[Question],
    paths: Sequence[Sequence[Passage]],
    found_passages: Sequence[Sequence[Passage]],
) -> list[dict[str, GateVerdict]]:
    """The verdicts of a model for each question: its path, and what one search finds. A fault passes nothing."""
    readings: list[ReadingInput] = []
    for question, path, hits in zip(questions, paths, found_passages, strict=True):
        passage_lists = [path, *([*path[:at], *path[at + 1 :]] for at in range(len(path)))] if len(path) > 1 else [path]
        readings += [ReadingInput(question.question, tuple(passages)) for passages in (*passage_lists, (), hits)]
    outputs = iter(reader.answer([reader.context(reading) for reading in readings]))
    verdicts: list[dict[str, GateVerdict]] = []
    for question, path in zip(questions, paths, strict=True):
        count = len(path) + 1 if len(path) > 1 else 1
        read_path, without_passages, after_search = [next(outputs) for _ in range(count)], next(outputs), next(outputs)
        answers = [output.answer or "" for output in (*read_path, without_passages, after_search)]
        right = [cover_match(answer, question.answers) for answer in answers]
        if any(output.fault for output in (*read_path, without_passages, after_search)):
            verdicts.append({name: GateVerdict(False, "the reader failed", fault=True) for name in GATES})
            continue
        unneeded = "a passage of the path is not needed" if any(right[1:count]) else ""
        reason = unneeded if right[0] else "read otherwise"
        single = len(path) == 1
        verdicts.append({
            "follows": GateVerdict(not reason, reason, tuple(answers[:count])),
            "closed_book": GateVerdict(not right[-2], "answered without search" if right[-2] else "", (answers[-2],)),
            "one_search": GateVerdict(
                single or not right[-1], "answered after one search" if right[-1] else "", (answers[-1],)
            ),
        })  # fmt: skip
    return verdicts


def edge(solved: float | None, least: float, most: float) -> GateVerdict:
    """The last gate, with a solver: the share of its tries that are right is from `least` to `most`."""
    if solved is None:
        return GateVerdict(False, "the solver failed")
    if least <= solved <= most:
        return GateVerdict(True, f"solved in {solved:.0%} of the tries")
    return GateVerdict(False, f"the solver {'seldom' if solved < least else 'nearly always'} answers it")


class Solver(Protocol):
    """Tries questions several times."""

    def solved(self, questions: Sequence[Question]) -> list[float | None]:
        """The share of right tries of each question, in [0, 1]; `None` where a part failed in every try."""
        ...


@dataclass(frozen=True)
class AgentSolver:
    """An agent with its retriever, which should draw its text: tries at temperature 0 are all alike."""

    agent: Agent
    retriever: Retriever
    limits: Limits
    tries: int
    seed: int

    def solved(self, questions: Sequence[Question]) -> list[float | None]:
        attempts = [
            replace(question, id=f"q{row}") for row, question in enumerate(questions) for _ in range(self.tries)
        ]
        seeds = [row_seed(self.seed, question.question, at % self.tries) for at, question in enumerate(attempts)]
        right: dict[str, list[bool]] = {f"q{row}": [] for row in range(len(questions))}
        for trajectory in rollout(self.agent, self.retriever, attempts, seeds, self.limits):
            if trajectory.fault is None:
                right[trajectory.question.id].append(exact_match(trajectory.answer, trajectory.question.answers))
        return [sum(tries) / len(tries) if tries else None for tries in right.values()]
