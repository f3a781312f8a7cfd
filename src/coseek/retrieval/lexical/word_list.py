"""Word list: the vocabulary of an index, as the bytes of its file, a JSON list of words in the order of code points.

An index has more words than passages, and an update touches few of them, so they are looked up and edited without
being made into strings. Words hold letters, digits and marks alone: none needs an escape.

V words · U words that are looked up · I words that are inserted · G words that go
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError
from coseek.data.array_file import WAY_OUT
from coseek.retrieval.lexical.postings import Ints

_BETWEEN = b'", "'
_KEY_BYTES = 8
_MASKS = np.array([(1 << 64) - (1 << 8 * (_KEY_BYTES - size)) for size in range(_KEY_BYTES + 1)], dtype=np.uint64)
"""Keeps so many first bytes of a key."""


class WordList(Sequence[bytes]):
    """The words, in UTF-8, which is ordered as the code points are."""

    def __init__(self, data: bytes) -> None:
        """`data`: the contents of the file."""
        self.data = data
        marks = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord('"'))
        self._firsts_V, self._ends_V = marks[::2] + 1, marks[1::2]

    @classmethod
    def of(cls, words: Sequence[str]) -> Self:
        """The list of sorted words."""
        return cls(f'["{_BETWEEN.decode().join(words)}"]'.encode() if words else b"[]")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. Raises `DataError` for one that `of` does not write."""
        try:
            found = cls(path.read_bytes())
            found.data.decode()
        except (OSError, UnicodeDecodeError):
            raise DataError(f"{path} is missing or cannot be read; {WAY_OUT}") from None
        if not found._is_framed() or b"\\" in found.data:
            raise DataError(f"{path} is not a list of words; {WAY_OUT}")
        return found

    def _is_framed(self) -> bool:
        """Whether between the words there is what `of` writes, and nothing else."""
        firsts_V, ends_V = self._firsts_V, self._ends_V
        if not len(firsts_V) or len(firsts_V) != len(ends_V):
            return self.data == b"[]"
        framed = self.data[:2] == b'["' and self.data[ends_V[-1] :] == b'"]'
        spaced = (firsts_V[1:] == ends_V[:-1] + len(_BETWEEN)).all()
        view, after_V = np.frombuffer(self.data, dtype=np.uint8), ends_V[:-1] + 1
        return bool(framed and spaced and (view[after_V] == ord(",")).all() and (view[after_V + 1] == ord(" ")).all())

    def __len__(self) -> int:
        return len(self._ends_V)

    def __getitem__(self, number: int) -> bytes:  # type: ignore[override]  # slices are of no use here
        return self.data[self._firsts_V[number] : self._ends_V[number]]

    def between(self, low: str, high: str) -> list[str]:
        """The words from `low` on, before `high`."""
        first, end = (bisect_left(self, sign.encode()) for sign in (low, high))
        return [self[number].decode() for number in range(first, end)]

    def strings(self) -> list[str]:
        """All words."""
        return self.data.decode()[2:-2].split(_BETWEEN.decode()) if len(self) else []

    def places(self, other: "WordList") -> tuple[Ints, NDArray[np.bool_]]:
        """Where each word of another list belongs in this one, and whether it is there."""
        own_V, asked_U = self._keys(), other._keys()
        low_U, high_U = np.searchsorted(own_V, asked_U), np.searchsorted(own_V, asked_U, side="right")
        known_U = high_U > low_U
        # A key tells a short word from all others; longer ones may share it.
        for number in np.flatnonzero(known_U & (other._ends_V - other._firsts_V >= _KEY_BYTES)).tolist():
            word, high = other[number], int(high_U[number])
            at = bisect_left(self, word, int(low_U[number]), high)
            low_U[number], known_U[number] = at, at < high and self[at] == word
        return low_U, known_U

    def _keys(self) -> NDArray[np.uint64]:
        """The first bytes of each word as a number, zeros behind short ones: in the order of the words."""
        padded = self.data + bytes(_KEY_BYTES)
        at_each_byte = np.ndarray((len(self.data) + 1,), dtype=">u8", buffer=padded, strides=(1,))
        keys_V: NDArray[np.uint64] = at_each_byte[self._firsts_V].astype(np.uint64)
        keys_V &= _MASKS[np.minimum(self._ends_V - self._firsts_V, _KEY_BYTES)]
        return keys_V

    def edited(self, at_I: Ints, inserted: Sequence[bytes], gone_G: Ints) -> bytes:
        """The contents of the file with a word inserted before each rising place `at`, and without those at `gone`."""
        text = self.data[1:-1] + (b", " if len(self) else b"")  # every word with its quotes and `, ` behind
        starts_V1 = np.append(self._firsts_V, len(text) + 2) - 2
        places_E = np.concatenate([at_I, gone_G])
        lasts_E = np.concatenate([at_I, gone_G + 1])
        texts = [b'"%b", ' % word for word in inserted] + [b""] * len(gone_G)
        order_E = np.argsort(places_E, kind="stable")
        parts, done = list[bytes](), 0
        for number, begin, end in zip(
            order_E.tolist(), starts_V1[places_E[order_E]].tolist(), starts_V1[lasts_E[order_E]].tolist(), strict=True
        ):
            parts += (text[done:begin], texts[number])
            done = end
        return b"[" + (b"".join(parts) + text[done:])[:-2] + b"]"
