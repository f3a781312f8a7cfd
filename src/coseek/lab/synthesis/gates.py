"""Gates: the tests that every made question must pass. Each verdict is stored.

By rules:

    verbatim        the last passage contains the answer verbatim, and the answer is short
    self_contained  it is a question, and it does not point at a passage
    closed_book     the question contains neither the answer nor the name between the passages, and no guess is right
    both            the first passage alone does not answer (two passages)
    follows         no other passage contains two names of the path (two passages)
    one_search      a search with the question does not find the last passage (two passages)
    retrievable     it finds the first one

By a model (`Generator`), again `follows`, `closed_book` and `one_search`: it must answer right from the path, and wrong
without any one of its passages, without all passages, and from the top passages of the one search. By a solver, `edge`:
it answers the question in some of its tries, but not in nearly all.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.run_questions import row_seed
from coseek.core.record import OMIT_EMPTY, Record
from coseek.data.answers import cover_match, exact_match
from coseek.data.passage import Passage
from coseek.data.question import Question, plain_name
from coseek.graders.generator import Generator, GeneratorContext
from coseek.lab.synthesis.graph import HopGraph
from coseek.lab.synthesis.proposals import Proposal
from coseek.retrieval.lexical.analyzer import has_words, words
from coseek.retrieval.retriever import Retriever

GATES = ("follows", "closed_book", "one_search")
"""The gates that a model tests, too."""
LONGEST_ANSWER = 12
"""In words."""
_QUESTION_WORDS = range(3, 61)
_MARKS = ("?", "？", "؟")
_POINTING = re.compile(
    r"\b(?:(?:this|the|these|both|above|given|following|first|second|provided)\s+(?:passages?|texts?|documents?|"
    r"articles?|excerpts?|paragraphs?|snippets?)|according\s+to\s+(?:it|this)|(?:mentioned|described|stated|listed)\s+"
    r"(?:above|here|below)|passages?\s+[12])\b",
    re.IGNORECASE,
)
FINDABLE = 20
"""Number of top passages among which the first passage must be."""


@dataclass(frozen=True, slots=True)
class GateVerdict(Record):
    """Whether a question passes, and why not."""

    passed: bool
    reason: Annotated[str, OMIT_EMPTY] = ""
    said: Annotated[tuple[str, ...], OMIT_EMPTY] = ()
    """A model's answers."""
    fault: Annotated[bool, OMIT_EMPTY] = False
    """A part failed, so nothing is known of the question."""


Verdicts = dict[str, GateVerdict]


def rule_verdicts(graph: HopGraph, proposal: Proposal, depth: int) -> Verdicts:
    """The verdicts by rules, up to the first failure."""
    verdicts: Verdicts = {}
    for name, reason, fails in _rule_checks(graph, proposal, depth):
        verdicts[name] = GateVerdict(not fails, reason if fails else "")
        if fails:
            break
    return verdicts


def _rule_checks(graph: HopGraph, proposal: Proposal, depth: int) -> Iterator[tuple[str, str, bool]]:
    """Tests in order: gate, reason of a failure, whether the question fails."""
    path, question, answer = [graph.corpus[row] for row in proposal.rows], proposal.question, proposal.answer
    is_verbatim = bool(answer) and answer in " ".join(path[-1].text.split()) and has_words(path[-1].text, answer)
    yield "verbatim", "the answer does not stand in the passage", not is_verbatim
    yield "verbatim", "the answer is too long", len(words(answer)) > LONGEST_ANSWER
    is_question = question.endswith(_MARKS) and len(words(question)) in _QUESTION_WORDS
    yield "self_contained", "it is no question", not is_question
    yield "self_contained", "the question points at its passage", bool(_POINTING.search(question))
    yield "closed_book", "the question holds what it asks for", has_words(question, answer, proposal.link)
    yield "closed_book", "the answer is the most frequent one of its phrase", proposal.guessed
    found_ids = graph.found_by(question, max(depth, FINDABLE))
    if len(path) > 1:
        yield "both", "the first passage holds the answer", has_words(f"{path[0].title} {path[0].text}", answer)
        start = plain_name(graph.passages[proposal.rows[0]].title)
        names = (start, plain_name(proposal.link), answer)
        yield "follows", "another passage holds two names of the path", not graph.is_exclusive(proposal.rows, names)
        is_found = path[-1].id in found_ids[:depth]
        yield "one_search", f"the passage with the answer is among the first {depth}", is_found
    yield "retrievable", f"no passage of the path is among the first {FINDABLE}", path[0].id not in found_ids


def model_verdicts(
    reader: Generator,
    questions: Sequence[Question],
    paths: Sequence[Sequence[Passage]],
    found_passages: Sequence[Sequence[Passage]],
) -> list[Verdicts]:
    """The verdicts of a model for each question with its path and its passages from one search. A fault passes no
    gate."""
    contexts: list[GeneratorContext] = []
    for question, path, hits in zip(questions, paths, found_passages, strict=True):
        passage_lists = [path, *([*path[:at], *path[at + 1 :]] for at in range(len(path)))] if len(path) > 1 else [path]
        contexts += [reader.context(question.question, passages) for passages in (*passage_lists, (), hits)]
    outputs = iter(reader.answer(contexts))
    verdicts: list[Verdicts] = []
    for question, path in zip(questions, paths, strict=True):
        is_single = len(path) == 1
        of_question = [next(outputs) for _ in range(3 if is_single else len(path) + 3)]
        if any(output.fault for output in of_question):
            verdicts.append({name: GateVerdict(False, "the reader failed", fault=True) for name in GATES})
            continue
        answers = tuple(output.answer or "" for output in of_question)
        from_path, *with_less, without_passages, after_search = (
            cover_match(answer, question.answers) for answer in answers
        )
        reason = "read otherwise" if not from_path else "a passage of the path is not needed" if any(with_less) else ""
        verdicts.append({
            "follows": GateVerdict(not reason, reason, answers[:-2]),
            "closed_book": _verdict(without_passages, "answered without search", answers[-2]),
            # One hop takes one search by its nature.
            "one_search": _verdict(after_search and not is_single, "answered after one search", answers[-1]),
        })  # fmt: skip
    return verdicts


def _verdict(has_failed: bool, reason: str, answer: str) -> GateVerdict:
    return GateVerdict(not has_failed, reason if has_failed else "", (answer,))


def edge(solved: float | None, least: float, most: float) -> GateVerdict:
    """The last gate, with a solver: the share of its tries that are right is from `least` to `most`."""
    if solved is None:
        return GateVerdict(False, "the solver failed")
    if least <= solved <= most:
        return GateVerdict(True, f"solved in {solved:.0%} of the tries")
    return GateVerdict(False, f"the solver {'seldom' if solved < least else 'nearly always'} answers it")


Solver: TypeAlias = Callable[[Sequence[Question]], list[float | None]]
"""Questions → the share of right tries of each, in [0, 1]; `None` where a part failed in every try."""


def solved(
    questions: Sequence[Question], agent: Agent, retriever: Retriever, limits: Limits, tries: int, seed: int
) -> list[float | None]:
    """A `Solver` of an agent with its retriever. It should sample: at temperature 0 all tries are the same."""
    attempts = [replace(question, id=f"q{row}") for row, question in enumerate(questions) for _ in range(tries)]
    seeds = [row_seed(seed, question.question, index % tries) for index, question in enumerate(attempts)]
    right: dict[str, list[bool]] = {f"q{row}": [] for row in range(len(questions))}
    for trajectory in rollout(agent, retriever, attempts, seeds, limits):
        if trajectory.fault is None:
            right[trajectory.question.id].append(exact_match(trajectory.answer, trajectory.question.answers))
    return [sum(hits) / len(hits) if hits else None for hits in right.values()]
