"""Board: what the sampler remembers of every open row, one line a slot, in arrays so that a step costs no loop."""

import numpy as np
from numpy.typing import NDArray


class SlotTable:
    """Lines 0 … `live` - 1 are being written, lines up to `used` are open and wait, the rest are free."""

    def __init__(self, slots: int) -> None:
        self.live = 0
        self.used = 0
        self.open = np.zeros(slots, np.bool_)
        self.key = np.zeros(slots, np.int64)
        self.length = np.zeros(slots, np.int64)
        """Tokens that the cache holds."""
        self.pending = np.zeros(slots, np.int64)
        """The row's newest token, which the cache does not hold yet."""
        self.seed = np.zeros(slots, np.uint64)
        self.written = np.zeros(slots, np.int64)
        """Tokens written in this turn."""
        self.budget = np.zeros(slots, np.int64)
        """Tokens that may be written in this turn."""
        self.ids = np.zeros((slots, 0), np.int64)
        self.logprobs = np.zeros((slots, 0), np.float64)
        self.slot_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self.key) - self.used

    def take(self, key: int) -> int:
        """Give a free line to a row."""
        slot = self.used
        self.used += 1
        self.open[slot] = True
        self.key[slot] = key
        self.length[slot] = 0
        self.slot_of[key] = slot
        return slot

    def drop(self, key: int) -> None:
        """Forget a row; its line is free after the next `partition` by `open`."""
        self.open[self.slot_of.pop(key)] = False

    def begin_turn(self, slot: int, seed: int, budget: int) -> None:
        """Make room for the tokens of a new turn."""
        self.seed[slot] = seed
        self.written[slot] = 0
        self.budget[slot] = budget
        missing = budget - self.ids.shape[1]
        if missing > 0:
            self.ids = np.pad(self.ids, ((0, 0), (0, missing)))
            self.logprobs = np.pad(self.logprobs, ((0, 0), (0, missing)))

    def record(self, ids: NDArray[np.int64], logprobs: NDArray[np.float64]) -> None:
        """One more token on every live line; what was pending is in the cache now."""
        lines = np.arange(self.live)
        at = self.written[: self.live]
        self.ids[lines, at] = ids
        self.logprobs[lines, at] = logprobs
        self.written[: self.live] += 1
        self.length[: self.live] += 1
        self.pending[: self.live] = ids

    def turn(self, slot: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """What was written in this turn."""
        end = int(self.written[slot])
        return tuple(self.ids[slot, :end].tolist()), tuple(self.logprobs[slot, :end].tolist())

    def partition(self, front: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bring the lines marked in `front` before the others with as few exchanges as can be; returns the pairs."""
        count = int(front.sum())
        first = np.flatnonzero(~front[:count])
        second = count + np.flatnonzero(front[count:])
        both, crossed = np.concatenate((first, second)), np.concatenate((second, first))
        for column in self._columns():
            column[both] = column[crossed]
        for slot in both[self.open[both]].tolist():
            self.slot_of[int(self.key[slot])] = slot
        return first, second

    def _columns(self) -> tuple[NDArray[np.generic], ...]:
        return (
            *(self.open, self.key, self.length, self.pending),
            *(self.seed, self.written, self.budget, self.ids, self.logprobs),
        )
