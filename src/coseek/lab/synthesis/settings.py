"""Settings of the synthesis of questions."""

from typing import Literal

from pydantic import Field, model_validator

from coseek.core.settings import Settings

Split = Literal["train", "dev", "test"]


class SynthesisSettings(Settings):
    """How many questions are made, of which kind, and how they are tested."""

    seed: int = 0
    """Seed of all draws."""
    count: int = Field(default=2000, ge=1)
    """Questions in all, at most."""
    hop_mix: tuple[float, ...] = (1.0, 2.0)
    """Weights of 1 and 2 hops. One hop fills up what is missing of two."""
    dev: float = Field(default=0.1, ge=0, lt=0.5)
    """Share of the questions that goes to the dev split, about."""
    test: float = Field(default=0.1, ge=0, lt=0.5)
    """The same of the test split."""
    reuse: int = Field(default=4, ge=1)
    """Questions whose path may hold one passage."""
    depth: int = Field(default=5, ge=1)
    """Passages of the one search that must not answer."""
    edge: tuple[float, float] = (0.2, 0.8)
    """Least and greatest share of a solver's tries that are right, where one is given."""
    tries: int = Field(default=5, ge=2)
    """Tries of a question by the solver."""
    proposals: int = Field(default=3, ge=1)
    """Questions that a generator is asked for about one passage or pair of passages, at most."""
    limit: int | None = Field(default=None, ge=1)
    """Passages, and pairs of passages, that a generator is asked about, at most each; null: all, until there are
    `count` questions."""
    reply_tokens: int = Field(default=1024, ge=1)
    """Tokens of a generator's reply, at most."""
    negatives: int = Field(default=8, ge=0)
    """Hard negatives of a question."""
    unanswerable: float = Field(default=0.3, ge=0, le=1)
    """Share of the questions that lose a passage in the data set of the unanswerable twins; 0 writes none."""

    @model_validator(mode="after")
    def _can_be_made(self) -> "SynthesisSettings":
        if not 1 <= len(self.hop_mix) <= 2 or min(self.hop_mix) < 0 or sum(self.hop_mix) <= 0:
            raise ValueError("hop_mix takes the weights of 1 and 2 hops, none below 0 and not all 0")
        if not 0 <= self.edge[0] <= self.edge[1] <= 1:
            raise ValueError("edge needs two shares from 0 to 1, the smaller one first")
        return self
