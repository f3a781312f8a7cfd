"""Activations: the memory of one forward and backward pass, from the shape of the model. Does not import torch."""

from coseek.models.shape import Shape
from coseek.training.trainer.settings import LearnerSettings

GIB = 2.0**30


def trunk_bytes(shape: Shape, settings: LearnerSettings) -> float:
    """Bytes per token that the layers keep: the inputs of two norms and of every matrix product of each layer.

    About 8·h + 2·q + 3·k + 4·f numbers a layer (h hidden, q and k query and key widths, f feed-forward). Fused attention
    keeps no scores. `checkpointing` keeps h a layer and one layer in full.
    """
    size = 4 if settings.precision == "float32" else 2
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = 8 * shape.hidden + 2 * queries + 3 * keys + 4 * shape.feed_forward
    return float(size * (shape.layers * shape.hidden + layer if settings.checkpointing else shape.layers * layer))


def logit_bytes(shape: Shape) -> float:
    """Bytes per token in the loss: three float32 numbers for each token of the vocabulary."""
    return 12.0 * shape.vocabulary


def micro_batch_tokens(shape: Shape, settings: LearnerSettings) -> int:
    """Maximum tokens per forward pass: `micro_batch_tokens`, or as many as `micro_batch_gib` holds if all are
    in the loss, at least 1."""
    if settings.micro_batch_gib is None:
        return settings.micro_batch_tokens
    return max(1, int(settings.micro_batch_gib * GIB / (trunk_bytes(shape, settings) + logit_bytes(shape))))
