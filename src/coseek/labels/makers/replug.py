"""REPLUG: a passage is worth what it does to the likelihood of the answer, and the retriever is to agree.

REPLUG LSR (Shi et al., NAACL 2024, §4): with d one of the k passages that the current retriever finds for x,

    Q(d | x, y) = exp(u(d) / β) / Σ_d' exp(u(d') / β),   u(d) = log P_LM(y | d, x)

and the retriever learns by KL divergence from its own softmax over the same passages: hence `targets`. The paper's
formula has the probability itself in the place of its logarithm (β = 0.1), which `utility=probability` gives: long
answers have probabilities so small that all their passages then weigh the same.

Here x is the agent's query and y an answer to the user's question, which the model reads beside the passage. With
`queries=question` x is that question, as in the paper. The positive is the passage of the highest utility, all others
are negatives, for trainers that take no targets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.labels.answer_likelihood import LOGP, AnswerLikelihoodSettings, ByLikelihood, scored, softmax
from coseek.labels.label_set import Candidate, LabelSet
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.resources import LabelResources


class ReplugSettings(AnswerLikelihoodSettings):
    """Which passages are weighed, and how sharp the targets are."""

    temperature: float = Field(default=1.0, gt=0)
    """β: the smaller, the more of the weight goes to the best passage."""
    utility: Literal["log-probability", "probability"] = "log-probability"
    """What the softmax is taken of."""


@dataclass(frozen=True)
class ReplugRule:
    """Softmax over single passages."""

    temperature: float
    utility: Literal["log-probability", "probability"]

    @property
    def name(self) -> str:
        return f"replug {self.temperature} {self.utility}"

    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        return [[passage] for passage in passages]

    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        ranked = sorted(scored(candidates, **{LOGP: nats}), key=lambda one: -one.scores[LOGP])
        utilities = [one.scores[LOGP] for one in ranked]
        if self.utility == "probability":
            utilities = [math.exp(value) for value in utilities]
        return LabelSet(
            turn=turn.id,
            question=turn.question,
            query=turn.query,
            candidates=tuple(ranked),
            positive=ranked[0].passage.id,
            negatives=tuple(one.passage.id for one in ranked[1:]),
            targets=softmax(utilities, self.temperature),
        )


SETTINGS = ReplugSettings


def terms(settings: ReplugSettings) -> MakerRequirements:
    return MakerRequirements(likelihood=True, targets=True)


def open(settings: ReplugSettings, parts: LabelResources) -> ByLikelihood:
    return ByLikelihood(ReplugRule(settings.temperature, settings.utility), settings, parts)
