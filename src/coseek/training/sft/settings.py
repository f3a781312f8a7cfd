"""Settings of supervised fine-tuning. Does not import torch: a recipe is checked before torch is loaded."""

from typing import Annotated, TypeAlias

from pydantic import Field

from coseek.core.settings import Settings
from coseek.rewards.reward import RewardSpec
from coseek.training.trainer.settings import LearnerSettings, OptimizerSettings

Weight: TypeAlias = Annotated[float, Field(ge=0.0)]


class Phase(Settings):
    """A phase of a curriculum: the distribution of demonstrations until `until` of training is done."""

    until: float = Field(gt=0.0, le=1.0)
    """Share of training at which this phase ends."""
    hops: dict[int, Weight]
    """Number of hops → its share of the draws. Shares need not sum to 1."""


class SftSettings(Settings):
    """Supervised fine-tuning on demonstrations. The defaults train a laptop policy from random weights."""

    steps: int = Field(default=800, ge=0)
    """Updates on demonstrations, per round."""
    tokens_per_step: int = Field(default=3000, ge=1)
    """Tokens per update, padding included."""
    learner: LearnerSettings = LearnerSettings(
        optimizer=OptimizerSettings(lr=3e-3, betas=(0.9, 0.98), decay="linear", decay_from=0.5),
        precision="auto",
    )
    """Training of the model."""
    environment_weight: float = Field(default=0.1, ge=0.0)
    """Loss weight of a token that the agent did not write (prompt, documents); the agent's tokens have 1."""
    repeat_steps: int = Field(default=100, ge=0)
    """Updates on the copy task before the demonstrations, which teach an untrained model to copy. Use 0 for a
    pretrained model."""
    varied_steps: int = Field(default=0, ge=0)
    """Further updates on the copy task. In every other one, lengths and distances vary: copying by content."""
    repeat_tokens: int = Field(default=1536, ge=4)
    """Tokens per update on the copy task."""
    repeat_length: int = Field(default=24, ge=2)
    """Tokens of a sequence of the copy task."""
    curriculum: tuple[Phase, ...] = (
        Phase(until=0.15, hops={1: 1.0}),
        Phase(until=1.0, hops={1: 0.25, 2: 0.3, 3: 0.25, 4: 0.2}),
    )
    """Phases that set the shares of hops, for demonstrations whose hops are known."""
    gate: float | None = None
    """If `gate_metric` is below this, another round follows, up to `rounds`."""
    gate_metric: str = "exact_match"
    """Metric of the evaluation that the gate compares."""
    rounds: int = Field(default=3, ge=1)
    """Maximum number of rounds. Each starts from the weights of the previous round with a new schedule."""
    later_steps: int | None = Field(default=None, ge=1)
    """Updates per round after the first; `steps` if not set."""
    later_lr: float = Field(default=0.5, gt=0.0)
    """Factor on the learning rate after every round."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates only at the end of a round."""
    log_every: int = Field(default=10, ge=1)
    """Steps between rows of metrics."""
    checkpoint_every: int = Field(default=50, ge=1)
    """Steps between checkpoints; the last step always has one."""
    seed: int = 0
    """Seed of all randomness in the run."""


class KeepSettings(Settings):
    """Which runs are learnt from."""

    at_least: float = 1.0
    """A run counts as right if its reward is at least this."""
    keep: int = Field(default=1, ge=1)
    """Maximum number of right runs kept per question, a random sample with the recipe's seed."""


class KeptRunsSettings(KeepSettings):
    """Which stored runs are learnt from."""

    reward: RewardSpec = Field(default={"exact_match": 1.0})
    """The reward that decides, of parts that ask no grader."""


class RejectionSettings(KeepSettings):
    """Rejection sampling: supervised fine-tuning on the agent's own right runs."""

    samples: int = Field(default=5, ge=1)
    """Runs per question."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of the runs."""
    sft: SftSettings = SftSettings()
    """Supervised fine-tuning on the kept runs, without the copy task (`repeat_steps`)."""
