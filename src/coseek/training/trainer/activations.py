"""Activations: the memory of one forward and backward pass, from the shape of the model. Does not import torch."""

from coseek.models.shape import Shape
from coseek.training.trainer.settings import LearnerSettings

GIB = 2.0**30


def pass_bytes(shape: Shape, settings: LearnerSettings, tokens: float, wanted: float) -> float:
    """Bytes of a pass over so many tokens, of which `wanted` are in the loss.

    A layer keeps the inputs of its two norms and of every matrix product: about 8·h + 2·q + 3·k + 4·f numbers a token
    (h hidden, q and k query and key widths, f feed-forward), and needs 2·f more in its backward pass. Fused attention
    keeps no scores. The loss needs three float32 numbers for each token of the vocabulary. `checkpointing` keeps h a
    layer, and then either one layer in full or the logits.
    """
    size = 4 if settings.precision == "float32" else 2
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = size * tokens * (8 * shape.hidden + 2 * queries + 3 * keys + 4 * shape.feed_forward)
    backward = size * tokens * 2 * shape.feed_forward
    logits = 12.0 * wanted * shape.vocabulary
    if settings.checkpointing:
        return size * tokens * shape.layers * shape.hidden + max(layer + backward, logits)
    return shape.layers * layer + max(backward, logits)


def micro_batch_tokens(shape: Shape, settings: LearnerSettings) -> int:
    """Maximum tokens per forward pass: `micro_batch_tokens`, or as many as `micro_batch_gib` holds if all are in the
    loss, at least 1."""
    if settings.micro_batch_gib is None:
        return settings.micro_batch_tokens
    return max(1, int(settings.micro_batch_gib * GIB / pass_bytes(shape, settings, 1, 1)))
