"""Autocast: the forward pass in bfloat16, and what makes it fast on a CPU.

- oneDNN compiles a bfloat16 product anew for every shape, which takes about ten times as long as the product. Batches
  differ in length, so a step would meet no shape twice. Lengths and numbers of positions are padded to few values.
- The backward pass of attention takes twice as long in bfloat16 as in float32, so attention runs in float32.

Float32 has neither cost, and a GPU has its own kernels: there nothing changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from coseek.training.trainer.attention import KNOWN, ReplacedAttention

LENGTHS = 16
"""Rows are padded to a multiple of this many tokens."""
POSITIONS = 64
"""Wanted positions are padded to a multiple of this number."""


@contextmanager
def bfloat16_autocast(device: torch.device, *, checkpointing: bool) -> Iterator[None]:
    """Run matrix products in bfloat16 in this block. `checkpointing`: whether layers run again in the backward pass,
    outside of the block; their attention then stays in bfloat16, as it will be there."""
    # A pass uses each weight once, so a cache of the cast weights would only hold them all at the same time.
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        if device.type != "cpu" or checkpointing:
            yield
        else:
            with ReplacedAttention(_attention_in_float32):
                yield


def pad_length(values_BT: Tensor) -> Tensor:
    """Pad rows on the right, with 0, to a length that few batches differ in."""
    return _padded(values_BT, 1, LENGTHS)


def pad_positions(values_ND: Tensor) -> Tensor:
    """Append positions of zeros, to a number of them that few batches differ in."""
    return _padded(values_ND, 0, POSITIONS)


def _padded(values: Tensor, dim: int, multiple: int) -> Tensor:
    missing = -values.shape[dim] % multiple
    if missing == 0 or values.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return values
    return F.pad(values, (0, 0) * (values.ndim - 1 - dim) + (0, missing))


def _attention_in_float32(*args: object, **named: object) -> object:
    with torch.autocast("cpu", enabled=False):
        return KNOWN(*map(_widened, args), **{name: _widened(value) for name, value in named.items()})


def _widened(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
