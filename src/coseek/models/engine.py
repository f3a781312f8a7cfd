"""Engine: a network with a key-value cache for many rows, the state of every slot, and the plan of shared prefixes.
Knows token ids and slots, but no requests.

A row occupies one slot. Its tokens fill columns 0, 1, 2, …, so that a token's column is its position and no row holds
padding. Columns beyond a row's length are never attended to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class TokenBlock:
    """New tokens of B rows, right-padded to W columns. Sizes that the host knows are fields, since reading them from an
    accelerator is a synchronisation."""

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
        self._max_slots, self._max_columns = 0, 0

    def expect(self, slots: int, columns: int) -> None:
        """Set the largest slots and columns that are needed: growth in advance stops there."""
        self._max_slots, self._max_columns = max(slots, self._max_slots), max(columns, self._max_columns)

    def reserve(self, slots: int, columns: int) -> None:
        """Allocate at least this many slots and columns; their contents are kept."""
        if slots <= self.slots and columns <= self.columns:
            return
        self.version += 1
        if slots > self.slots:
            self.slots = max(slots, min(self.slots * 3 // 2, self._max_slots))
        if columns > self.columns:
            self.columns = max(columns, min(self.columns * 3 // 2, self._max_columns))
        for store in (self.keys, self.values):
            for layer, tensor in store.items():
                store[layer] = tensor.new_zeros((self.slots, tensor.shape[1], self.columns, tensor.shape[3]))
                store[layer][: tensor.shape[0], :, : tensor.shape[2]] = tensor
        for layer, tensor in self.states.items():
            self.states[layer] = torch.cat((tensor, tensor.new_zeros((self.slots - len(tensor), *tensor.shape[1:]))))

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

    def copy(self, from_N: Tensor, to_N: Tensor, columns: int) -> None:
        """Copy the first `columns` columns and the states of slots to other slots. All are read before any is
        written."""
        for keys_or_values in (*self.keys.values(), *self.values.values()):
            used_columns = keys_or_values[:, :, :columns]
            used_columns[to_N] = used_columns[from_N]
        for state in self.states.values():
            state[to_N] = state[from_N]


class Engine(Protocol):
    """Reads blocks of tokens into slots, and computes next-token logits of the first slots."""

    device: torch.device
    cache: KVCache
    """Its slots are reserved through the engine."""
    run_ahead: int
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


class SlotTable:
    """Slots 0 … `live` − 1 are being sampled, slots up to `used` are open and wait, the rest are free."""

    def __init__(self, slots: int) -> None:
        self.live = 0
        self.used = 0
        self.open = np.zeros(slots, np.bool_)
        self.key = np.zeros(slots, np.int64)
        self.length = np.zeros(slots, np.int64)
        """Tokens in the cache."""
        self.pending = np.zeros(slots, np.int64)
        """The row's last token, which is not in the cache yet."""
        self.seed = np.zeros(slots, np.uint64)
        self.written = np.zeros(slots, np.int64)
        """Tokens sampled in this turn."""
        self.budget = np.zeros(slots, np.int64)
        """The maximum of `written`."""
        self.ids = np.zeros((slots, 0), np.int64)
        self.logprobs = np.zeros((slots, 0), np.float64)
        self.slot_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self.key) - self.used

    def take(self, key: int) -> int:
        """Assign a free slot to a row."""
        slot = self.used
        self.used += 1
        self.open[slot] = True
        self.key[slot] = key
        self.length[slot] = 0
        self.slot_of[key] = slot
        return slot

    def drop(self, key: int) -> None:
        """Remove a row; its slot is free after the next `partition` by `open`."""
        self.open[self.slot_of.pop(key)] = False

    def begin_turn(self, slot: int, seed: int, budget: int) -> None:
        """Start a turn: allocate space for its tokens."""
        self.seed[slot] = seed
        self.written[slot] = 0
        self.budget[slot] = budget
        missing_columns = budget - self.ids.shape[1]
        if missing_columns > 0:
            self.ids = np.pad(self.ids, ((0, 0), (0, missing_columns)))
            self.logprobs = np.pad(self.logprobs, ((0, 0), (0, missing_columns)))

    def trim(self) -> None:
        """Free the space for tokens of ended turns, if it is three quarters or more."""
        needed_columns = int(self.budget[: self.used].max(initial=0))
        if 4 * needed_columns <= self.ids.shape[1]:
            self.ids, self.logprobs = self.ids[:, :needed_columns].copy(), self.logprobs[:, :needed_columns].copy()

    def record(self, going: NDArray[np.bool_], ids: NDArray[np.int64], logprobs: NDArray[np.float64]) -> None:
        """Append a token to the `going` live rows; their pending tokens are now in the cache."""
        slots = np.flatnonzero(going)
        columns = self.written[slots]
        self.ids[slots, columns] = ids[slots]
        self.logprobs[slots, columns] = logprobs[slots]
        self.written[slots] += 1
        self.length[slots] += 1
        self.pending[slots] = ids[slots]

    def turn(self, slot: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The ids and log-probabilities of this turn."""
        end = int(self.written[slot])
        return tuple(self.ids[slot, :end].tolist()), tuple(self.logprobs[slot, :end].tolist())

    def partition(self, front: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Move the slots marked in `front` before the others with the fewest exchanges; returns the exchanged pairs."""
        count = int(front.sum())
        first = np.flatnonzero(~front[:count])
        second = count + np.flatnonzero(front[count:])
        target_slots, source_slots = np.concatenate((first, second)), np.concatenate((second, first))
        columns: tuple[NDArray[np.generic], ...] = (
            *(self.open, self.key, self.length, self.pending),
            *(self.seed, self.written, self.budget, self.ids, self.logprobs),
        )
        for column in columns:
            column[target_slots] = column[source_slots]
        for slot in target_slots[self.open[target_slots]].tolist():
            self.slot_of[int(self.key[slot])] = slot
        return first, second


MIN_SHARED = 32
"""The minimum length of a shared prefix for which a separate pass is faster."""

PromptPiece: TypeAlias = tuple[int, tuple[int, ...]]
"""A slot and the tokens to read into it."""


@dataclass(frozen=True, slots=True)
class SharingRound:
    """Pieces to read, each in one row's slot, then copies to other rows."""

    pieces: tuple[PromptPiece, ...]
    copies: tuple[tuple[int, int, int], ...]
    """Source, target, and the number of tokens."""


def plan_prefix_sharing(
    rows: Sequence[PromptPiece], open_rows: Sequence[PromptPiece] = ()
) -> tuple[list[SharingRound], dict[int, tuple[int, ...]]]:
    """Plan the reading of new rows: consecutive rounds, and the remaining tokens of each slot. `open_rows`: what other
    slots hold already, or the beginning of it."""
    rounds: list[SharingRound] = []
    remaining_ids: dict[int, tuple[int, ...]] = {}
    new_slots = {slot for slot, _ in rows}
    level = [(0, sorted((*rows, *open_rows), key=lambda row: row[1]))]
    while level:
        next_level: list[tuple[int, list[PromptPiece]]] = []
        pieces: list[PromptPiece] = []
        copies: list[tuple[int, int, int]] = []
        for depth, group in level:
            for branch in _branches(group, depth + MIN_SHARED):
                ids, last_ids = branch[0][1], branch[-1][1]
                targets = [slot for slot, _ in branch if slot in new_slots]
                if len(branch) == 1:
                    remaining_ids |= dict.fromkeys(targets, ids[depth:])
                if len(branch) == 1 or not targets:
                    continue
                shared_length = _common_length(ids, last_ids)  # rows are sorted, so all rows between share it
                source = next((slot for slot, _ in branch if slot not in new_slots), None)
                if source is None:
                    source = targets.pop(0)
                    pieces.append((source, ids[depth:shared_length]))
                copies += [(source, target, shared_length) for target in targets]
                next_level.append((shared_length, branch))
        if copies:
            rounds.append(SharingRound(tuple(pieces), tuple(copies)))
        level = next_level
    return _last_copies(rounds), remaining_ids


def _branches(rows: Sequence[PromptPiece], min_shared: int) -> Iterator[list[PromptPiece]]:
    """Split sorted rows where neighbours share fewer than `min_shared` tokens."""
    branch: list[PromptPiece] = []
    for row in rows:
        if branch and _common_length(branch[-1][1], row[1]) < min_shared:
            yield branch
            branch = []
        branch.append(row)
    if branch:
        yield branch


def _common_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """The length of the common prefix of two rows."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # slices are compared faster than tokens
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


def _last_copies(rounds: Sequence[SharingRound]) -> list[SharingRound]:
    """Drop copies to rows that a later round overwrites."""
    reduced: list[SharingRound] = []
    overwritten: set[int] = set()
    for sharing_round in reversed(rounds):
        copies = tuple(pair for pair in sharing_round.copies if pair[1] not in overwritten)
        overwritten.update(target for _, target, _ in copies)
        if copies:
            reduced.append(SharingRound(sharing_round.pieces, copies))
    return reduced[::-1]
