"""Slots: where rows keep what a network has read. Keys and values by layer, and whatever else a layer remembers."""

import torch
from torch import Tensor


class KVCache:
    """`keys[layer]` and `values[layer]` are `[slots, heads, columns, dim]`; `states[layer]` is `[slots, …]`.

    A layer's tensors are made when the layer is first used. Room grows by half at least, so growing is rare.
    """

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.states: dict[int, Tensor] = {}
        self._slots, self._columns = 0, 0

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for this many slots and columns; what is there stays."""
        if slots > self._slots:
            self._slots = max(slots, self._slots * 3 // 2)
        if columns > self._columns:
            self._columns = max(columns, self._columns * 3 // 2)
        for store in (self.keys, self.values):
            for layer, old in store.items():
                if old.shape[0] < self._slots or old.shape[2] < self._columns:
                    store[layer] = old.new_zeros((self._slots, old.shape[1], self._columns, old.shape[3]))
                    store[layer][: old.shape[0], :, : old.shape[2]] = old
        for layer, old in self.states.items():
            if old.shape[0] < self._slots:
                self.states[layer] = torch.cat((old, old.new_zeros((self._slots - len(old), *old.shape[1:]))))

    def use(self, layer: int, heads: int, dim: int, like: Tensor) -> None:
        """Make a layer's keys and values, unless they are there."""
        if layer not in self.keys:
            shape = (self._slots, heads, self._columns, dim)
            self.keys[layer], self.values[layer] = like.new_zeros(shape), like.new_zeros(shape)

    def use_state(self, layer: int, shape: tuple[int, ...], like: Tensor) -> None:
        """Make a layer's state, unless it is there."""
        if layer not in self.states:
            self.states[layer] = like.new_zeros((self._slots, *shape))

    def clear(self, slots_B: Tensor) -> None:
        """Make slots as new. Old keys may stay: nothing attends beyond a row's length."""
        for state in self.states.values():
            state[slots_B] = 0

    def swap(self, first_N: Tensor, second_N: Tensor, columns: int) -> None:
        """Exchange rows, as far as they are used."""
        both, crossed = torch.cat((first_N, second_N)), torch.cat((second_N, first_N))
        for keys_or_values in (*self.keys.values(), *self.values.values()):
            used = keys_or_values[:, :, :columns]
            used[both] = used[crossed]
        for state in self.states.values():
            state[both] = state[crossed]

    def copy(self, from_N: Tensor, to_N: Tensor, columns: int) -> None:
        """Let rows take over what others hold in their first columns, and all else that a layer remembers of them."""
        for keys_or_values in (*self.keys.values(), *self.values.values()):
            used = keys_or_values[:, :, :columns]
            used[to_N] = used[from_N]
        for state in self.states.values():
            state[to_N] = state[from_N]
