"""LLM-Embedder style: a passage is good when the answer is likelier with it than without any.

    change(d) = log P_LM(y | d, x) − log P_LM(y | x)

The positive is the passage of the greatest change, if that is above a bound; otherwise the turn is dropped. Negatives
are the passages of the lowest. After LLM-Embedder (Zhang et al., ACL 2024), which learns from a language model's
feedback to single passages. It is not that method whole: there the feedback is graded by the rank of the wanted answer
among sampled ones, a distillation loss takes all of it, and several tasks are trained together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.labels.answer_likelihood import LOGP, AnswerLikelihoodSettings, ByLikelihood, scored
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.resources import LabelResources

CHANGE = "change"


class LlmEmbedderSettings(AnswerLikelihoodSettings):
    """Which passages are weighed, and which of them are taken."""

    above: float = 0.0
    """The positive's change is greater than this, in nats."""
    negatives: int = Field(default=7, ge=1)
    """Passages of the lowest change that become negatives."""


@dataclass(frozen=True)
class ChangeRule:
    """Single passages against none."""

    above: float
    negatives: int

    @property
    def name(self) -> str:
        return f"llm-embedder {self.above} {self.negatives}"

    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        return [[], *([passage] for passage in passages)]

    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        closed, *opened = nats
        rows = scored(candidates, **{LOGP: opened, CHANGE: [value - closed for value in opened]})
        ranked = sorted(rows, key=lambda one: -one.scores[CHANGE])
        best = ranked[0].scores[CHANGE]
        if not best > self.above:
            return DroppedTurn(turn.id, "no-positive", f"the greatest change is {best:.3f}")
        return LabelSet(
            turn=turn.id,
            question=turn.question,
            query=turn.query,
            candidates=tuple(ranked),
            positive=ranked[0].passage.id,
            negatives=tuple(one.passage.id for one in ranked[1:][-self.negatives :]),
        )


SETTINGS = LlmEmbedderSettings


def terms(settings: LlmEmbedderSettings) -> MakerRequirements:
    return MakerRequirements(likelihood=True)


def open(settings: LlmEmbedderSettings, parts: LabelResources) -> ByLikelihood:
    return ByLikelihood(ChangeRule(settings.above, settings.negatives), settings, parts)
