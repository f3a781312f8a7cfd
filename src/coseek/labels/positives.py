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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Ties: TypeAlias = Literal["paper", "code"]
LEAST = 60.0
"""Lower bound of a positive's local relevance (Agentic-R, section 4.1)."""
MOST_TIED = 3
"""Maximum number of positives of one turn under the `code` rule."""


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


@dataclass(eq=False)
class PositiveChoice:
    """The choice of one turn's positives, which learns the GAC of its candidates as they are continued."""

    relevance_C: Sequence[float]
    """LR of each candidate, in the retriever's order."""
    ties: Ties = "paper"
    least: float = LEAST
    exhaustive: bool = False
    """Continue every candidate first; the positives are the same."""
    _correct: dict[int, bool] = field(default_factory=dict)
    _tried: set[int] = field(default_factory=set)

    def wanted(self) -> tuple[int, ...]:
        """The candidates to be continued now, never the same one twice; none when the choice is made."""
        if self.exhaustive and not self._tried:
            places: tuple[int, ...] = tuple(range(len(self.relevance_C)))
        else:
            outcome = self._outcome()
            places = (outcome.candidate,) if isinstance(outcome, NextCandidate) else ()
        fresh = tuple(place for place in places if place not in self._tried)
        self._tried.update(fresh)
        return fresh

    @property
    def most_left(self) -> int:
        """Candidates that may still be wanted, at most."""
        return sum(relevance >= self.least for relevance in self.relevance_C) - len(self._tried)

    def learn(self, candidate: int, right: bool | None) -> None:
        """Whether the answer from a candidate was right; `None` for a fault."""
        if right is not None:
            self._correct[candidate] = right

    @property
    def positives(self) -> tuple[int, ...] | None:
        """The positives; `None` where they depend on a GAC that is a fault."""
        outcome = self._outcome()
        return None if isinstance(outcome, NextCandidate) else outcome

    def _outcome(self) -> tuple[int, ...] | NextCandidate:
        return decide_positives(self.relevance_C, self._correct, ties=self.ties, least=self.least)
