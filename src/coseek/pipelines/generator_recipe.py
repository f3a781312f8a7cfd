"""Recipe of a laptop generator: everything that decides how it is trained and measured. Does not import torch."""

from pydantic import Field

from coseek.core.settings import Settings
from coseek.hardware.precision import SamplingPrecision
from coseek.models.laptop import LaptopSettings
from coseek.training.sft.settings import Phase, SftSettings
from coseek.training.trainer.settings import LearnerSettings, OptimiserSettings
from coseek.world.settings import WorldSettings

HOP_MIX = (0.30, 0.35, 0.20, 0.15)


def _world(**changes: float | str) -> WorldSettings:
    common = {"aliases": 0.2, "alias_use": 0.15, "paraphrases": 2, "hop_mix": HOP_MIX}
    return WorldSettings.model_validate({**common, **changes})


class GeneratorTable(Settings):
    """The measurements."""

    dev_questions: int = Field(default=150, ge=1)
    """Questions that the gate looks at."""
    questions: int = Field(default=800, ge=1)
    """Questions of the last measurement, at most."""
    passages: int = Field(default=5, ge=2)
    """Passages of a measured question, its gold ones among them."""
    seed: int = 0
    """Seed of the order of the passages, and of the bootstrap."""


class GeneratorRecipe(Settings):
    """How a laptop generator is trained and measured."""

    seed: int = 0
    """Everything random in the run follows from it, but for the held-out world, which has a seed of its own."""
    worlds: int = Field(default=40, ge=1)
    """Throw-away worlds that lessons are drawn from: no fact of the measured world is in them."""
    world: WorldSettings = _world(size="compact", train=400, dev=0, test=0, comparison=0.2, constraint=0.15)
    """What a throw-away world is like; each has another seed. Comparisons and constraints are more than are asked: they
    are the last to be learnt."""
    held_out: WorldSettings = _world(seed=8, size="small", train=0)
    """The world that the gate (split dev) and the last measurement (split test) look at."""
    passages: tuple[int, int] = (2, 6)
    """Fewest and most passages of a lesson; a question has one more than its gold ones at least."""
    laptop: LaptopSettings = LaptopSettings(
        layers=("conv", "full_attention", "conv", "full_attention", "conv", "full_attention"), vocabulary=2500
    )
    """The generator's shape."""
    sft: SftSettings = SftSettings(
        steps=3200,
        repeat_steps=120,
        varied_steps=260,
        environment_weight=0.02,
        curriculum=(
            Phase(until=0.2, hops={0: 0.8, 1: 0.2}),
            Phase(until=0.3, hops={0: 0.4, 1: 0.5, 2: 0.1}),
            Phase(until=1.0, hops={0: 0.05, 1: 0.4, 2: 0.27, 3: 0.17, 4: 0.11}),
        ),
        learner=LearnerSettings(
            optimiser=OptimiserSettings(lr=3e-3, betas=(0.9, 0.98), decay="linear", decay_from=0.5),
            precision="auto",
        ),
        gate=0.8,
        gate_metric="em",
        rounds=4,
        later_steps=800,
        evaluate_every=400,
    )
    """The supervised training; the gate is strict EM on held-out questions with gold passages among others."""
    max_answer_tokens: int = Field(default=160, ge=1)
    """Tokens that the generator may write, its reasons included."""
    precision: SamplingPrecision = "float32"
    """Of weights and cache while it answers."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; as many as there are cores when not set."""
    table: GeneratorTable = GeneratorTable()
    """The measurements."""
