"""REPLUG: the retriever's distribution over passages is trained towards their effect on the answer's likelihood.

REPLUG LSR (Shi et al., NAACL 2024, §4): with d one of the k passages that the current retriever returns for x,

    Q(d | x, y) = exp(u(d) / β) / Σ_d' exp(u(d') / β),   u(d) = log P_LM(y | d, x)

The loss is the KL divergence to the retriever's own softmax over the same passages: hence `targets`. The paper's
formula uses the probability instead of its logarithm (β = 0.1; `utility=probability` here), which makes all passages of
a long answer nearly equal.

x is the agent's query, y an answer to the user's question, which the model reads with the passage. With
`queries=question` x is that question, as in the paper. For trainers without targets the positive is the passage with
the highest utility, and all others are negatives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.labels.answer_likelihood import LOGP, AnswerLikelihoodSettings, LikelihoodMaker, scored, softmax
from coseek.labels.label_set import Candidate, LabelSet
from coseek.labels.maker import Labelled, MakerRequirements


class ReplugSettings(AnswerLikelihoodSettings):
    """Candidates and softmax."""

    temperature: float = Field(default=1.0, gt=0)
    """β: the smaller, the more probability the best passage gets."""
    utility: Literal["log-probability", "probability"] = "log-probability"
    """Argument of the softmax."""


@dataclass(frozen=True)
class Replug(LikelihoodMaker):
    """Softmax over the utilities of single passages."""

    settings: ReplugSettings

    @property
    def name(self) -> str:
        return f"replug {self.settings.temperature} {self.settings.utility}"

    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        return [[passage] for passage in passages]

    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        ranked = sorted(scored(candidates, **{LOGP: nats}), key=lambda candidate: -candidate.scores[LOGP])
        utilities = [candidate.scores[LOGP] for candidate in ranked]
        if self.settings.utility == "probability":
            utilities = [math.exp(value) for value in utilities]
        return LabelSet.ranked(turn, ranked, ranked[1:], softmax(utilities, self.settings.temperature))


SETTINGS = ReplugSettings


def terms(settings: ReplugSettings) -> MakerRequirements:
    return MakerRequirements(likelihood=True, targets=True)


open = Replug
