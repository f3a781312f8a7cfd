"""Engine: a network with a key-value cache for many rows. Knows token ids and slots, but no requests.

A row occupies one slot. Its tokens fill columns 0, 1, 2, …, so that a token's column is its position and no row holds
padding. Columns beyond a row's length are never attended to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBlock:
    """New tokens of B rows, right-padded to W columns. What is known of it on the host is said here, since to read it
    off an accelerator is to wait for all that was asked of it."""

    ids_BW: Tensor
    slots_B: Tensor
    starts_B: Tensor
    """The number of tokens of each row that were read before."""
    lengths: Sequence[int]
    """The number of tokens among the W columns, at least 1."""
    end: int
    """One more than the last column of the block, padding included."""
    first: bool = False
    """Whether the slots are 0 … B−1, whose cache is a view."""

    @cached_property
    def lengths_B(self) -> Tensor:
        if self.ids_BW.shape[1] == 1:
            return torch.ones_like(self.starts_B)
        return torch.tensor(self.lengths, device=self.ids_BW.device)

    @cached_property
    def real_N(self) -> Tensor:
        """Indices of the tokens in the flattened block, without its padding."""
        real_BW = np.arange(self.ids_BW.shape[1]) < np.array(self.lengths)[:, None]
        return torch.from_numpy(np.flatnonzero(real_BW)).to(self.ids_BW.device)

    @cached_property
    def positions_BW(self) -> Tensor:
        return self.starts_B[:, None] + torch.arange(self.ids_BW.shape[1], device=self.ids_BW.device)


class KVCache:
    """`keys[layer]` and `values[layer]` are `[slots, heads, columns, dim]`; `states[layer]` is `[slots, …]`. A layer's
    tensors are allocated at first use. Capacity grows by at least half, so growing is rare."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.states: dict[int, Tensor] = {}
        self.holder: object = None
        """The sampler with open rows, if any: samplers may share an engine, one at a time."""
        self.slots, self.columns = 0, 0
        """Allocated slots and columns."""
        self.version = 0
        """Changes when the cache is reallocated, which invalidates captured steps."""
        self._most_slots, self._most_columns = 0, 0

    def expect(self, slots: int, columns: int) -> None:
        """Set the largest slots and columns that are needed: growth in advance stops there."""
        self._most_slots, self._most_columns = max(slots, self._most_slots), max(columns, self._most_columns)

    def reserve(self, slots: int, columns: int) -> None:
        """Allocate at least this many slots and columns; what is in them stays."""
        if slots <= self.slots and columns <= self.columns:
            return
        self.version += 1
        if slots > self.slots:
            self.slots = max(slots, min(self.slots * 3 // 2, self._most_slots))
        if columns > self.columns:
            self.columns = max(columns, min(self.columns * 3 // 2, self._most_columns))
        for store in (self.keys, self.values):
            for layer, old in store.items():
                store[layer] = old.new_zeros((self.slots, old.shape[1], self.columns, old.shape[3]))
                store[layer][: old.shape[0], :, : old.shape[2]] = old
        for layer, old in self.states.items():
            self.states[layer] = torch.cat((old, old.new_zeros((self.slots - len(old), *old.shape[1:]))))

    def use(self, layer: int, heads: int, dim: int, like: Tensor, value_dim: int | None = None) -> None:
        """Allocate a layer's keys and values, once. Values may be narrower than keys (multi-head latent attention)."""
        if layer not in self.keys:
            shape = (self.slots, heads, self.columns)
            self.keys[layer] = like.new_zeros((*shape, dim))
            self.values[layer] = like.new_zeros((*shape, dim if value_dim is None else value_dim))

    def use_state(self, layer: int, shape: tuple[int, ...], like: Tensor) -> None:
        """Allocate a layer's state, once."""
        if layer not in self.states:
            self.states[layer] = like.new_zeros((self.slots, *shape))

    def clear(self, slots_B: Tensor) -> None:
        """Reset slots. Old keys may stay, since nothing attends beyond a row's length."""
        for state in self.states.values():
            state[slots_B] = 0

    def release(self) -> None:
        """Free the memory of the cache; the next rows allocate it again. Raises `ValueError` while rows are open."""
        if self.holder is not None:
            raise ValueError("rows are open, and their cache cannot be freed; close them first")
        for store in (self.keys, self.values, self.states):
            store.clear()
        self.version += 1
        self.slots, self.columns = 0, 0

    def swap(self, first_N: Tensor, second_N: Tensor, columns: int) -> None:
        """Exchange two lists of slots, without repetitions; no row is longer than `columns`."""
        both, crossed = torch.cat((first_N, second_N)), torch.cat((second_N, first_N))
        for keys_or_values in (*self.keys.values(), *self.values.values()):
            used = keys_or_values[:, :, :columns]
            used[both] = used[crossed]
        for state in self.states.values():
            state[both] = state[crossed]

    def copy(self, from_N: Tensor, to_N: Tensor, columns: int) -> None:
        """Copy the first `columns` columns and the states of slots to other slots."""
        for keys_or_values in (*self.keys.values(), *self.values.values()):
            used = keys_or_values[:, :, :columns]
            used[to_N] = used[from_N]
        for state in self.states.values():
            state[to_N] = state[from_N]


class Engine(Protocol):
    """Reads blocks of tokens into slots, and computes next-token logits of the first slots."""

    device: torch.device
    cache: KVCache
    """Its slots are reserved through the engine."""
    stretch: int
    """Number of tokens to sample before the host checks them. On an accelerator every check is a synchronisation."""

    def padded(self, rows: int) -> int:
        """Number of rows to call `step` with in order to sample the first `rows`: at least that, at most the allocated
        slots. Pass the extra rows at their current length, where the cache holds nothing yet."""

    def reserve(self, slots: int, columns: int) -> None:
        """`KVCache.reserve`, for all open rows and the longest of them."""

    def read(self, block: TokenBlock) -> None:
        """Read a block of tokens into the cache."""

    def step(self, ids_B: Tensor, starts_B: Tensor, end: int) -> Tensor:
        """Read one token into each of the slots 0 … B−1; `end` is one more than the largest start. Returns the next
        tokens' logits_BV, in float32."""

    def refresh(self) -> None:
        """Copy the current weights of the shared module. Cached rows become invalid."""

    def release(self) -> None:
        """Free the cache and the engine's own copy of weights until `refresh`. Raises `ValueError` while rows are
        open."""


def free_weights(module: torch.nn.Module) -> None:
    """Free the memory of a module's weights, which are then undefined."""
    for weight in module.parameters():
        weight.untyped_storage().resize_(0)


def allocate_weights(module: torch.nn.Module) -> None:
    """Allocate freed weights again; they stay undefined."""
    for weight in module.parameters():
        weight.untyped_storage().resize_(weight.numel() * weight.itemsize)
