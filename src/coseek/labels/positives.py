"""Deciding: which candidates of a search turn are its positives, asking for as few continuations as can be.

Agentic-R ranks the candidates of a turn by (GAC, LR), both falling; equals keep the retriever's order. The first of
them is the positive, if its GAC is 1 and its LR at least 60 (paper 000 §4.1). GAC costs a continuation of the agent for
every candidate, LR is known beforehand, and most continuations change nothing:

1. A candidate with an LR below 60 is never the positive. It is first only if no GAC of 1 has an LR of 60 or more, and
   then there is no positive at all. So it need not be continued.
2. Of the others, the positive is the first with a GAC of 1 when they are taken by falling LR, equals in the retriever's
   order. Whatever the GAC of those behind it, they rank below it. So nothing behind it need be continued.
3. Under the `code` rule every candidate that equals the first one in both scores is a positive, the first three of
   them in the retriever's order. These have the same LR, so they are next in that same order, and nothing behind the
   last candidate of that LR, or behind the third positive, need be continued.

The negatives are drawn from all candidates that are no positive, so they do not ask for a GAC either. The labels are
therefore those of continuing every candidate, which a test makes by the book and compares.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Ties: TypeAlias = Literal["paper", "code"]
LEAST = 60.0
"""The local relevance that a positive has at least (paper 000 §4.1)."""
MOST_TIED = 3
"""Positives of one turn under the `code` rule."""
Asked: TypeAlias = tuple[int, int]
"""A candidate, as (place of its turn, place of the candidate in that turn)."""


@dataclass(frozen=True, slots=True)
class NextCandidate:
    """The turn is not decided before this candidate's GAC is known."""

    candidate: int


def decide_positives(
    relevance_C: Sequence[float], correct: Mapping[int, bool], *, ties: Ties = "paper", least: float = LEAST
) -> tuple[int, ...] | NextCandidate:
    """The positives of a turn, in the retriever's order; none when no candidate has both scores.

    `relevance_C` is the LR of each candidate in the retriever's order, `correct` the GAC of those that were continued.
    Without LR (the ablation) pass the same number for all, without GAC a `correct` that is always true.
    """
    positives: list[int] = []
    able = [place for place, relevance in enumerate(relevance_C) if relevance >= least]
    for place in sorted(able, key=lambda place: -relevance_C[place]):
        if positives and relevance_C[place] < relevance_C[positives[0]]:
            break
        if place not in correct:
            return NextCandidate(place)
        if correct[place]:
            positives.append(place)
        if len(positives) == (1 if ties == "paper" else MOST_TIED):
            break
    return tuple(positives)


def decide_all_positives(
    relevance_TC: Sequence[Sequence[float]],
    continued: Callable[[Sequence[Asked]], Sequence[bool | None]],
    *,
    ties: Ties = "paper",
    least: float = LEAST,
    exhaustive: bool = False,
) -> Iterator[tuple[int, tuple[int, ...] | None]]:
    """(turn, its positives) for many turns (T) of up to C candidates each, as soon as they are known.

    `continued` lets the agent go on from these candidates and says whether each answer was right; `None` is a fault.
    It is asked for a wave of candidates of all turns at once, so that batches are full, and never for one twice. A turn
    has `None` for its positives when a GAC that they depend on is a fault, whatever else is known of it. `exhaustive`
    continues every candidate first, and decides the same.
    """
    correct_T: list[dict[int, bool]] = [{} for _ in relevance_TC]
    tried: set[Asked] = set()

    def learn(wave: Sequence[Asked]) -> None:
        tried.update(wave)
        for (turn, place), right in zip(wave, continued(wave) if wave else (), strict=True):
            if right is not None:
                correct_T[turn][place] = right

    if exhaustive:
        learn([(turn, place) for turn, relevance_C in enumerate(relevance_TC) for place in range(len(relevance_C))])
    undecided: Sequence[int] = range(len(relevance_TC))
    while undecided:
        wave: list[Asked] = []
        for turn in undecided:
            outcome = decide_positives(relevance_TC[turn], correct_T[turn], ties=ties, least=least)
            if not isinstance(outcome, NextCandidate):
                yield turn, outcome
            elif (turn, outcome.candidate) in tried:
                yield turn, None
            else:
                wave.append((turn, outcome.candidate))
        learn(wave)
        undecided = [turn for turn, _ in wave]
