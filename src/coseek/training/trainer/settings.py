"""Settings of a module in training. No torch in here: a recipe is checked before anything heavy is loaded."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from coseek.core.settings import Settings
from coseek.hardware.precision import TrainingPrecision

Decay: TypeAlias = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimiserSettings(Settings):
    """AdamW and its schedule."""

    lr: float = Field(default=3e-4, ge=0.0)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: float = Field(default=1e-8, ge=0.0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay, on matrices only."""
    clip_norm: float = Field(default=1.0, ge=0.0)
    """Gradients longer than this are shortened to it; 0 turns clipping off."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the fall after `decay_from`."""
    decay_from: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of all updates after which the fall begins."""
    floor: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the peak that is left at the end of the fall."""


class LoraSettings(Settings):
    """Low-rank adapters: few numbers are trained beside frozen weights. There is no dropout: what is trained must be
    what was sampled from."""

    rank: int = Field(default=16, ge=1)
    """Inner width of an adapter."""
    alpha: float = Field(default=32.0, gt=0.0)
    """The adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get one (`q_proj`); all but the output layer when none is named."""
    seed: int = 0
    """Of the adapters' first weights."""


class LearnerSettings(Settings):
    """How a module is run and stepped."""

    optimiser: OptimiserSettings = OptimiserSettings()
    """AdamW and its schedule."""
    precision: TrainingPrecision = "float32"
    """Arithmetic of the forward pass; weights and optimiser are float32 either way. `auto`: what is fastest here."""
    micro_batch_tokens: int = Field(default=1024, ge=1)
    """Tokens (padding included) that go through the module at once: a matter of memory and speed, not of the result."""
    checkpointing: bool = False
    """Keep one activation a layer and compute the others again on the way back: about a third slower, the same
    gradient, and far less memory for long rows."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of the weights."""
    workers: Literal["ddp", "fsdp2"] = "ddp"
    """How the workers of `torchrun` hold the weights: each all of them, or each a share. No matter to one worker, and
    not of the result."""
