"""Settings of supervised fine-tuning. Does not import torch: a recipe is checked before torch is loaded."""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from coseek.core.errors import DataError
from coseek.core.settings import Settings
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import RewardSpec
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings

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
        optimizer=OptimizerSettings(lr=3e-3, betas=(0.9, 0.98), lr_scheduler_type="linear", decay_from=0.5),
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
    """Which trajectories are trained on."""

    at_least: float = 1.0
    """A trajectory counts as right if its reward is at least this."""
    keep: int = Field(default=1, ge=1)
    """Maximum number of right trajectories kept per question."""
    prefer: Literal["any", "economical"] = "any"
    """Which are kept: a random sample with the recipe's seed, or those of the fewest searches, and among them of the
    fewest tokens of the agent."""


class KeptRunsSettings(KeepSettings):
    """Which stored trajectories are trained on."""

    reward: RewardSpec = Field(default={"exact_match": 1.0})
    """The reward that decides, of parts that ask no grader."""


class RejectionSettings(KeepSettings):
    """Rejection sampling: supervised fine-tuning on the agent's own right trajectories."""

    samples: int = Field(default=5, ge=1)
    """Trajectories per question."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of the trajectories."""
    sft: SftSettings = SftSettings()
    """Supervised fine-tuning on the kept trajectories, without the copy task (`repeat_steps`)."""


# Curriculum: chooses the next demonstration, as a function of the progress of training.

Draw: TypeAlias = Callable[[float, random.Random], Trajectory]
"""(share of training that is done, random generator) → a demonstration. No other state is used, so trainings resume."""


def draw_any(demonstrations: Sequence[Trajectory]) -> Draw:
    """Draw uniformly from all demonstrations at any time. Raises `DataError` if there are none."""
    if not demonstrations:
        raise DataError("there are no demonstrations to train on; give at least one")
    return lambda _done, rng: rng.choice(demonstrations)


def draw_by_hops(demonstrations: Sequence[Trajectory], phases: Sequence[Phase]) -> Draw:
    """Draw a number of hops by the phase's shares, then a demonstration with that many hops.

    Numbers of hops without a demonstration are skipped. Demonstrations of unknown hops, which no phase can name, keep
    their share of the draws. Without phases, or without known hops, draw from all.
    """
    draw_from_all = draw_any(demonstrations)
    by_hops: dict[int, list[Trajectory]] = {}
    without_hops: list[Trajectory] = []
    for demonstration in demonstrations:
        hops = demonstration.question.hops
        (without_hops if hops is None else by_hops.setdefault(hops, [])).append(demonstration)
    unknown_share = len(without_hops) / len(demonstrations)

    def draw(done: float, rng: random.Random) -> Trajectory:
        hops = hops_at(phases, done, by_hops, rng)
        if hops is None:
            return draw_from_all(done, rng)
        # Another draw would change what a seed gives where all hops are known.
        if without_hops and rng.random() < unknown_share:
            return rng.choice(without_hops)
        return rng.choice(by_hops[hops])

    return draw


def hops_at(phases: Sequence[Phase], done: float, known_hops: Collection[int], rng: random.Random) -> int | None:
    """Draw a number of hops by the shares of the phase at `done`; `None` if the phase has no known number of hops."""
    phase = next((phase for phase in phases if done < phase.until), phases[-1] if phases else None)
    phase_shares = sorted(phase.hops.items()) if phase else []
    shares = {hops: share for hops, share in phase_shares if hops in known_hops and share > 0}
    return rng.choices(list(shares), weights=list(shares.values()))[0] if shares else None
