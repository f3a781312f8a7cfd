"""Engine: a network with a cache for many rows. Knows ids and slots; nothing of randomness, stop strings or requests.

A row lives in one slot, its tokens in columns 0, 1, 2 … of it, so a token's column is its position and no row holds
padding. What lies beyond a row's length in its slot is never attended to.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """New tokens of B rows, padded on the right to W columns."""

    ids_BW: Tensor
    slots_B: Tensor
    starts_B: Tensor
    """How many tokens of the row were read before."""
    lengths_B: Tensor
    """How many of the W columns are tokens; at least one."""

    @property
    def positions_BW(self) -> Tensor:
        return self.starts_B[:, None] + torch.arange(self.ids_BW.shape[1], device=self.ids_BW.device)

    @property
    def end(self) -> int:
        """One more than the last column that the block touches, padding included."""
        return int(self.starts_B.max()) + self.ids_BW.shape[1]


class Engine(Protocol):
    """Reads blocks of tokens into slots, and says what may come next in the front slots."""

    device: torch.device

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for this many slots and columns; what was read stays."""
        ...

    def clear(self, slots_B: Tensor) -> None:
        """Make slots as if nothing had been read in them."""
        ...

    def swap(self, first_N: Tensor, second_N: Tensor, columns: int) -> None:
        """Exchange the rows of two lists of slots, none twice; no row is longer than `columns`."""
        ...

    def copy(self, from_N: Tensor, to_N: Tensor, columns: int) -> None:
        """Let slots take over what others hold, none of which is longer than `columns`."""
        ...

    def read(self, block: TokenBlock) -> None:
        """Take tokens in without asking what follows them."""
        ...

    def step(self, ids_B: Tensor, starts_B: Tensor) -> Tensor:
        """Read one token into each of the slots 0 … B-1; returns the logits_BV of what follows, in float32."""
        ...

    def refresh(self) -> None:
        """Take over the weights that the shared module has now. What was read before is void."""
        ...
