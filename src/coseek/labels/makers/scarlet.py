"""SCARLet style: the utility of a passage is the loss in answer likelihood when it is removed from the context.

    utility(d) = log P_LM(y | D, x) − log P_LM(y | D without d, x),   D the first `candidates` passages

Passages that help only together are both credited; passages with the same fact are both not. One-dimensional
clustering splits the utilities in two groups. The positive is the best passage, if its utility is above a bound; the
negatives are the lower group. Other passages of the upper group are neither.

After SCARLet (Xu et al., 2025), which attributes by perturbed contexts and samples by clustering, with three
differences: contexts are the retriever's results for the agent's query, not contexts shared by synthetic questions of
several tasks; one passage at a time is left out (k + 1 likelihoods), not arbitrary subsets; least squares splits the
groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.labels.answer_likelihood import AnswerLikelihoodSettings, LikelihoodMaker, scored
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.maker import Labelled, MakerRequirements

UTILITY = "utility"


class ScarletSettings(AnswerLikelihoodSettings):
    """Context and positive."""

    candidates: int = Field(default=5, ge=2)
    """Passages of the current retriever in the context."""
    above: float = 0.0
    """Lower bound of the positive's utility, exclusive, in nats."""


@dataclass(frozen=True)
class Scarlet(LikelihoodMaker):
    """All passages against all but one."""

    settings: ScarletSettings

    @property
    def name(self) -> str:
        return f"scarlet {self.settings.above}"

    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        without = [[*passages[:index], *passages[index + 1 :]] for index in range(len(passages))]
        return [list(passages), *without]

    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        with_all, *without_each = nats
        scored_candidates = scored(candidates, **{UTILITY: [with_all - value for value in without_each]})
        ranked = sorted(scored_candidates, key=lambda candidate: -candidate.scores[UTILITY])
        best = ranked[0].scores[UTILITY]
        if not best > self.settings.above:
            return DroppedTurn(turn.id, "no-positive", f"the highest utility is {best:.3f}")
        upper = upper_group([candidate.scores[UTILITY] for candidate in ranked])
        if upper == len(ranked):
            return DroppedTurn(turn.id, "no-negatives", "all passages have the same utility")
        return LabelSet.ranked(turn, ranked, ranked[upper:])


def upper_group(falling: Sequence[float]) -> int:
    """Size of the upper of two groups of descending values: the cut with the least Σ (value − mean of its group)².
    Equal values stay together; if all are equal, they are one group."""
    cuts = [cut for cut in range(1, len(falling)) if falling[cut - 1] > falling[cut]]
    return min(cuts, key=lambda cut: _spread(falling[:cut]) + _spread(falling[cut:]), default=len(falling))


def _spread(values: Sequence[float]) -> float:
    centre = fmean(values)
    return sum((value - centre) ** 2 for value in values)


SETTINGS = ScarletSettings


def terms(settings: ScarletSettings) -> MakerRequirements:
    return MakerRequirements(likelihood=True)


open = Scarlet
