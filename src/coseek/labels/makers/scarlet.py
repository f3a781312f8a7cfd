"""SCARLet style: a passage is worth what the answer loses when it is taken out of what is shown together.

    utility(d) = log P_LM(y | D, x) − log P_LM(y | D without d, x),   D the first `candidates` passages

So what two passages do only together is credited to both, and a passage whose fact another one tells, too, to neither.
The utilities are split in two groups by one-dimensional clustering; the positive is the best passage, if its utility is
above a bound, and negatives are the passages of the lower group. What else is in the upper group is neither.

After SCARLet (Xu et al., 2025), which attributes by perturbing the context and samples by clustering, and departs from
it in three things: contexts are what the retriever finds for the agent's query, not ones that were shared by questions
synthesised for several tasks; one passage at a time is left out, so that k + 1 likelihoods are exact attributions of
first order, where any subset may be perturbed; and the groups are told apart by least squares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.labels.answer_likelihood import AnswerLikelihoodSettings, ByLikelihood, scored
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.resources import LabelResources

UTILITY = "utility"


class ScarletSettings(AnswerLikelihoodSettings):
    """Which passages are shown together, and which of them are taken."""

    candidates: int = Field(default=5, ge=2)
    """Passages of the current retriever that are shown together."""
    above: float = 0.0
    """The positive's utility is greater than this, in nats."""


@dataclass(frozen=True)
class LeaveOneOut:
    """All passages against all but one."""

    above: float

    @property
    def name(self) -> str:
        return f"scarlet {self.above}"

    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        without = [[*passages[:place], *passages[place + 1 :]] for place in range(len(passages))]
        return [list(passages), *without]

    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        whole, *without = nats
        rows = scored(candidates, **{UTILITY: [whole - value for value in without]})
        ranked = sorted(rows, key=lambda one: -one.scores[UTILITY])
        best = ranked[0].scores[UTILITY]
        if not best > self.above:
            return DroppedTurn(turn.id, "no-positive", f"the highest utility is {best:.3f}")
        upper = upper_group([one.scores[UTILITY] for one in ranked])
        if upper == len(ranked):
            return DroppedTurn(turn.id, "no-negatives", "all passages have the same utility")
        return LabelSet(
            turn=turn.id,
            question=turn.question,
            query=turn.query,
            candidates=tuple(ranked),
            positive=ranked[0].passage.id,
            negatives=tuple(one.passage.id for one in ranked[upper:]),
        )


def upper_group(falling: Sequence[float]) -> int:
    """How many of the falling values are the upper of two groups: the cut with the least Σ (value − its group's
    mean)². Equal values are never parted, so all are one group when there is nothing to tell them apart."""
    cuts = [cut for cut in range(1, len(falling)) if falling[cut - 1] > falling[cut]]
    return min(cuts, key=lambda cut: _spread(falling[:cut]) + _spread(falling[cut:]), default=len(falling))


def _spread(values: Sequence[float]) -> float:
    centre = fmean(values)
    return sum((value - centre) ** 2 for value in values)


SETTINGS = ScarletSettings


def terms(settings: ScarletSettings) -> MakerRequirements:
    return MakerRequirements(likelihood=True)


def open(settings: ScarletSettings, parts: LabelResources) -> ByLikelihood:
    return ByLikelihood(LeaveOneOut(settings.above), settings, parts)
