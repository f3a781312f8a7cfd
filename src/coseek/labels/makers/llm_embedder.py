"""LLM-Embedder style: a passage is good if the answer is likelier with it than without any passage.

    change(d) = log P_LM(y | d, x) − log P_LM(y | x)

The positive is the passage with the greatest change, if that is above a bound; otherwise the turn is dropped. The
negatives are the passages with the lowest. After LLM-Embedder (Zhang et al., ACL 2024), which differs: its feedback is
the rank of the gold answer among sampled ones, its loss is a distillation over all passages, and it trains several
tasks together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.labels.answer_likelihood import LOGP, AnswerLikelihoodSettings, LikelihoodMaker, scored
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.maker import Labelled, MakerRequirements

CHANGE = "change"


class LlmEmbedderSettings(AnswerLikelihoodSettings):
    """Candidates and negatives."""

    above: float = 0.0
    """Lower bound of the positive's change, exclusive, in nats."""
    negatives: int = Field(default=7, ge=1)
    """Number of negatives: the passages with the lowest change."""


@dataclass(frozen=True)
class LlmEmbedder(LikelihoodMaker):
    """Each passage alone against no passage."""

    settings: LlmEmbedderSettings

    @property
    def name(self) -> str:
        return f"llm-embedder {self.settings.above} {self.settings.negatives}"

    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        return [[], *([passage] for passage in passages)]

    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        closed, *opened = nats
        rescored = scored(candidates, **{LOGP: opened, CHANGE: [value - closed for value in opened]})
        ranked = sorted(rescored, key=lambda candidate: -candidate.scores[CHANGE])
        best = ranked[0].scores[CHANGE]
        if not best > self.settings.above:
            return DroppedTurn(turn.id, "no-positive", f"the greatest change is {best:.3f}")
        return LabelSet.ranked(turn, ranked, ranked[1:][-self.settings.negatives :])


SETTINGS = LlmEmbedderSettings


def terms(settings: LlmEmbedderSettings) -> MakerRequirements:
    return MakerRequirements(likelihood=True)


open = LlmEmbedder
