"""Slots: the sampler's state of every open row, as arrays with one entry per slot."""

import numpy as np
from numpy.typing import NDArray


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

    @property
    def ends(self) -> NDArray[np.int64]:
        """Tokens that the cache holds of each row at the end of its turn, at most, but for those still to be read."""
        ends: NDArray[np.int64] = self.length + self.budget - self.written
        return ends

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
        """Start a turn: allocate room for its tokens."""
        self.seed[slot] = seed
        self.written[slot] = 0
        self.budget[slot] = budget
        missing = budget - self.ids.shape[1]
        if missing > 0:
            self.ids = np.pad(self.ids, ((0, 0), (0, missing)))
            self.logprobs = np.pad(self.logprobs, ((0, 0), (0, missing)))

    def trim(self) -> None:
        """Free the room for tokens of turns that have ended, where it is three quarters or more."""
        needed = int(self.budget[: self.used].max(initial=0))
        if 4 * needed <= self.ids.shape[1]:
            self.ids, self.logprobs = self.ids[:, :needed].copy(), self.logprobs[:, :needed].copy()

    def record(self, going: NDArray[np.bool_], ids: NDArray[np.int64], logprobs: NDArray[np.float64]) -> None:
        """Append a token to the `going` ones of the live rows; their pending tokens are now in the cache."""
        lines = np.flatnonzero(going)
        at = self.written[lines]
        self.ids[lines, at] = ids[lines]
        self.logprobs[lines, at] = logprobs[lines]
        self.written[lines] += 1
        self.length[lines] += 1
        self.pending[lines] = ids[lines]

    def turn(self, slot: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The ids and log-probabilities of this turn."""
        end = int(self.written[slot])
        return tuple(self.ids[slot, :end].tolist()), tuple(self.logprobs[slot, :end].tolist())

    def partition(self, front: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Move the slots marked in `front` before the others with the fewest exchanges; returns the exchanged pairs."""
        count = int(front.sum())
        first = np.flatnonzero(~front[:count])
        second = count + np.flatnonzero(front[count:])
        both, crossed = np.concatenate((first, second)), np.concatenate((second, first))
        columns: tuple[NDArray[np.generic], ...] = (
            *(self.open, self.key, self.length, self.pending),
            *(self.seed, self.written, self.budget, self.ids, self.logprobs),
        )
        for column in columns:
            column[both] = column[crossed]
        for slot in both[self.open[both]].tolist():
            self.slot_of[int(self.key[slot])] = slot
        return first, second
