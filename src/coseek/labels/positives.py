"""Positives: selects the positives of search turns with as few continuations of the agent as possible.

Agentic-R ranks the candidates of a turn by (GAC, LR), both descending; ties keep the retriever's order. The first is
the positive if its GAC is 1 and its LR at least 60 (Agentic-R, section 4.1). LR is known beforehand. GAC costs one
continuation per candidate, and most continuations cannot change the result:

1. A candidate with an LR below 60 is never the positive. It ranks first only if no candidate with an LR of 60 or more
   has a GAC of 1, and then there is no positive. It need not be continued.
2. Of the others, the positive is the first with a GAC of 1 by descending LR. Candidates after it rank below it,
   whatever their GAC. They need not be continued.
3. Under the `code` rule the positives are the first three candidates that equal the first one in both scores. They have
   the same LR, so they follow in the same order. Candidates after the last one with that LR, or after the third
   positive, need not be continued.

Negatives are drawn from all other candidates, so they need no GAC. A test compares the labels with those of continuing
every candidate.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Ties: TypeAlias = Literal["paper", "code"]
LEAST = 60.0
"""Lower bound of a positive's local relevance (Agentic-R, section 4.1)."""
MOST_TIED = 3
"""Maximum number of positives of one turn under the `code` rule."""
Asked: TypeAlias = tuple[int, int]
"""A candidate: (index of the turn, index of the candidate in that turn)."""


@dataclass(frozen=True, slots=True)
class NextCandidate:
    """The candidate whose GAC is needed next."""

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
    """(turn, its positives) for T turns of up to C candidates each, as soon as they are known.

    `continued` continues the agent from these candidates and returns whether each answer was right; `None` is a fault.
    It is called with candidates of all turns together, for full batches, and never twice with the same one. The
    positives of a turn are `None` if they depend on a GAC that is a fault. `exhaustive` continues every candidate first
    and gives the same positives.
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
