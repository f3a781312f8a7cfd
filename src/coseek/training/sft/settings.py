"""Settings of supervised training. No torch in here: a recipe is checked before anything heavy is loaded."""

from typing import Annotated, TypeAlias

from pydantic import Field

from coseek.core.settings import Settings
from coseek.training.trainer.settings import LearnerSettings, OptimiserSettings

Weight: TypeAlias = Annotated[float, Field(ge=0.0)]


class Phase(Settings):
    """A stretch of a curriculum: which questions demonstrations are drawn from until `until` of training is over."""

    until: float = Field(gt=0.0, le=1.0)
    """Share of training at which this phase ends."""
    hops: dict[int, Weight]
    """Number of hops → its share of the draws; they need not add up to 1."""


class SftSettings(Settings):
    """Supervised training on demonstrations: the warm start. The defaults make a laptop policy from nothing."""

    steps: int = Field(default=800, ge=0)
    """Updates on demonstrations, in each round."""
    tokens_per_step: int = Field(default=3000, ge=1)
    """Tokens in an update, padding included."""
    learner: LearnerSettings = LearnerSettings(
        optimiser=OptimiserSettings(lr=3e-3, betas=(0.9, 0.98), decay="linear", decay_from=0.5),
        precision="auto",
    )
    """How the model is run and stepped."""
    environment_weight: float = Field(default=0.1, ge=0.0)
    """Weight of a token that the agent did not write (prompt, documents); the agent's weigh 1."""
    repeat_steps: int = Field(default=100, ge=0)
    """Updates on random sequences written twice, before the demonstrations: they teach an untrained model to copy.
    0 for a model that has been trained before."""
    varied_steps: int = Field(default=0, ge=0)
    """Updates that follow, in every other of which lengths and distances spread: copying by content."""
    repeat_tokens: int = Field(default=1536, ge=4)
    """Tokens in such an update."""
    repeat_length: int = Field(default=24, ge=2)
    """Tokens in a sequence, before it is repeated."""
    curriculum: tuple[Phase, ...] = (
        Phase(until=0.15, hops={1: 1.0}),
        Phase(until=1.0, hops={1: 0.25, 2: 0.3, 3: 0.25, 4: 0.2}),
    )
    """Which questions when, for demonstrations whose hops are known."""
    gate: float | None = None
    """Value of `gate_metric` below which another round follows, up to `rounds`."""
    gate_metric: str = "exact_match"
    """Name of the evaluation that the gate looks at."""
    rounds: int = Field(default=3, ge=1)
    """Rounds at most; each begins with the weights of the one before it and a fresh schedule."""
    later_steps: int | None = Field(default=None, ge=1)
    """Updates of each round after the first; `steps` when not set."""
    later_lr: float = Field(default=0.5, gt=0.0)
    """Share of the learning rate that is left after every round."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates only at the end of a round."""
    log_every: int = Field(default=10, ge=1)
    """Steps between lines of metrics."""
    checkpoint_every: int = Field(default=50, ge=1)
    """Steps between checkpoints; the last step always has one."""
    seed: int = 0
    """Everything random in the run follows from it."""


class RejectionSettings(Settings):
    """Rejection sampling: the agent's own runs that were right are demonstrations for supervised training."""

    samples: int = Field(default=5, ge=1)
    """Runs of each question."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of those runs."""
    at_least: float = 1.0
    """Runs whose reward is at least this are right."""
    keep: int = Field(default=1, ge=1)
    """Right runs of one question that are kept, at most; drawn by the recipe's seed."""
    sft: SftSettings = SftSettings()
    """The supervised training on what was kept; nothing is repeated in it (`repeat_steps`)."""
