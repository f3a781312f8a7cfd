"""Settings of a module in training. Does not import torch: a recipe is checked before torch is loaded."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from coseek.core.settings import Settings
from coseek.hardware.placement import TrainingPrecision
from coseek.models.model_folder import Shape

Decay: TypeAlias = Annotated[float, Field(ge=0.0, lt=1.0)]
Offloaded: TypeAlias = Literal["moments", "reference", "weights"]


class OptimizerSettings(Settings):
    """AdamW or Muon, and the schedule."""

    algorithm: Literal["adamw", "muon"] = "adamw"
    """`muon` updates the matrices inside the layers by Muon and all else by AdamW: for networks from nothing."""
    lr: float = Field(default=3e-4, ge=0.0)
    """Peak learning rate."""
    muon_lr_factor: float = Field(default=1.0, gt=0.0)
    """Factor on the learning rate of what Muon updates."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: float = Field(default=1e-8, ge=0.0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay, on matrices only unless `decay_vectors`."""
    decay_vectors: bool = False
    """Apply the weight decay to vectors (norms, biases) as well."""
    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """Maximum norm of the gradient; 0 turns clipping off."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
    warmup_ratio: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The same as a share of all updates, rounded down; give one of the two."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate's decay after `decay_from`."""
    decay_from: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of all updates after which the decay begins."""
    min_lr_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Final learning rate as a share of the peak."""

    @model_validator(mode="after")
    def _has_one_warmup(self) -> "OptimizerSettings":
        if self.warmup_updates and self.warmup_ratio:
            raise ValueError(
                f"warmup_updates={self.warmup_updates} and warmup_ratio={self.warmup_ratio:g} are both given; set one "
                "of them to 0"
            )
        return self

    def warmup_of(self, total_updates: int) -> int:
        """Length of the warm-up of a training of `total_updates` updates."""
        return self.warmup_updates or int(self.warmup_ratio * total_updates)


class LoraSettings(Settings):
    """Low-rank adapters, trained beside frozen weights. There is no dropout, as in sampling."""

    rank: int = Field(default=16, ge=1)
    """Inner width of an adapter."""
    alpha: float = Field(default=32.0, gt=0.0)
    """The adapter's output is scaled by alpha / rank."""
    target_modules: tuple[str, ...] = ()
    """Names of the linear layers to adapt (`q_proj`); all but the output layer if empty."""
    seed: int = 0
    """Seed of the adapters' initial weights."""


class LearnerSettings(Settings):
    """Optimizer, precision, memory and parallelism of a module in training."""

    optimizer: OptimizerSettings = OptimizerSettings()
    """Optimizer and its schedule."""
    precision: TrainingPrecision = "float32"
    """Precision of the forward pass; weights and optimizer stay float32. `auto`: the fastest on this machine."""
    micro_batch_tokens: int = Field(default=1024, ge=1)
    """Maximum tokens per forward pass, padding included. It changes memory and speed, not the result."""
    micro_batch_gib: float | None = Field(default=None, gt=0.0)
    """Memory of the activations of one pass, in GiB. If set, `micro_batch_tokens` is worked out from it and the model's
    shape: see `pass_bytes`."""
    gradient_checkpointing: bool = False
    """Keep one activation per layer and recompute the others in the backward pass: about a third slower, the same
    gradient, and far less memory for long rows."""
    share_prefixes: bool = False
    """Compute what rows of a pass begin with in common once (`prefixes.py`): prompts, instructions, forked turns. For
    networks of full attention; the result is the same up to rounding."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of the weights."""
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """How the workers of `torchrun` hold weights, gradients and moments: `ddp` replicates them, `fsdp2` shards them. It
    does not change the result, and has no effect with one worker."""
    offload: tuple[Offloaded, ...] = ()
    """What the shards of `fsdp2` keep in the host's memory: the optimizer's `moments` between updates, the `reference`
    of the KL, and the `weights` with their gradients and moments, which are then updated on the CPU. A device needs
    less memory and the steps take longer; the result is the same."""

    @model_validator(mode="after")
    def _can_be_sharded(self) -> "LearnerSettings":
        if self.offload and self.strategy != "fsdp2":
            raise ValueError(
                f"offload=[{', '.join(self.offload)}] moves shards to the host's memory, and strategy={self.strategy} "
                "has no shards; set strategy=fsdp2, or leave offload out"
            )
        if self.share_prefixes and self.gradient_checkpointing:
            raise ValueError("share_prefixes keeps the activations of its attention; leave out gradient_checkpointing")
        if self.optimizer.algorithm == "muon" and self.strategy == "fsdp2":
            raise ValueError("Muon needs whole matrices; set strategy=ddp, or optimizer.algorithm=adamw")
        return self


# Activations: the memory of one forward and backward pass, from the shape of the model. Does not import torch.

GIB = 2.0**30


def pass_bytes(shape: Shape, settings: LearnerSettings, tokens: float, targets: float) -> float:
    """Bytes of a pass over `tokens` tokens, of which `targets` are in the loss.

    A layer keeps the inputs of its two norms and of every matrix product: about 8·h + 2·q + 3·k + 4·f numbers a token
    (h hidden, q and k query and key widths, f feed-forward), and needs 2·f more in its backward pass. Fused attention
    keeps no scores. The loss needs three float32 numbers for each token of the vocabulary. `gradient_checkpointing`
    keeps h a layer, and then either one layer in full or the logits.
    """
    size = 4 if settings.precision == "float32" else 2
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = size * tokens * (8 * shape.hidden + 2 * queries + 3 * keys + 4 * shape.feed_forward)
    backward = size * tokens * 2 * shape.feed_forward
    logits = 12.0 * targets * shape.vocabulary
    if settings.gradient_checkpointing:
        return size * tokens * shape.layers * shape.hidden + max(layer + backward, logits)
    return shape.layers * layer + max(backward, logits)


def micro_batch_tokens(shape: Shape, settings: LearnerSettings) -> int:
    """Maximum tokens per forward pass: `micro_batch_tokens`, or as many as `micro_batch_gib` holds if all are in the
    loss, at least 1."""
    if settings.micro_batch_gib is None:
        return settings.micro_batch_tokens
    return max(1, int(settings.micro_batch_gib * GIB / pass_bytes(shape, settings, 1, 1)))
