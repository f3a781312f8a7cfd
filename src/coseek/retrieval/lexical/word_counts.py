"""Word counts: how often each word occurs in each passage, what an index is weighed from and updated with.

They are counted in chunks, so that only numbers are held for the whole corpus.

N passages · V words · P word-passage pairs · U distinct words of a chunk
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError
from coseek.data.array_file import WAY_OUT
from coseek.retrieval.lexical.postings import Ints, Rows32

# Word list: the vocabulary of an index, as the bytes of its file, a JSON list of words in the order of code points.
#
# An index has more words than passages, and an update touches few of them, so they are looked up and edited without
# being made into strings. Words hold letters, digits and marks alone: none needs an escape.
#
# V words · U words that are looked up · I words that are inserted · G words that go

_BETWEEN = b'", "'
_KEY_BYTES = 8
_MASKS = np.array([(1 << 64) - (1 << 8 * (_KEY_BYTES - size)) for size in range(_KEY_BYTES + 1)], dtype=np.uint64)
"""Keeps the first bytes of a key, this many."""


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


Times = NDArray[np.unsignedinteger]

BLOCK_PAIRS = 262_144
"""Pairs of a block: arrays of this length stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class WordCounts:
    """The counts of a corpus. Word w occupies `starts_V1[w] : starts_V1[w + 1]`; every word occurs."""

    vocabulary: WordList
    starts_V1: Ints
    rows_P: Rows32
    """Ascending within a word."""
    times_P: Times
    """In an unsigned type that holds them all."""
    lengths_N: Ints
    """Words of each passage, repetitions included."""


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """Word counts of a chunk of passages, sorted by word, then row."""

    words_U: Ints
    passages_U: Ints
    """The number of passages in the chunk that contain each word."""
    rows_P: Rows32
    times_P: Rows32
    lengths_N: Ints


def count_words(words_T: Rows32, lengths_N: Ints) -> ChunkCounts:
    """Count a chunk. `words_T` is the concatenation of its passages' words; negative words are ignored."""
    rows_T = np.repeat(np.arange(len(lengths_N)), lengths_N)
    counted = words_T >= 0
    keys_T = words_T[counted].astype(np.int64) << 32 | rows_T[counted]
    lengths_N = np.bincount(rows_T[counted], minlength=len(lengths_N))
    keys_T.sort()
    first_P = _firsts(keys_T)
    keys_P = keys_T[first_P]
    first_U = _firsts(keys_P >> 32)
    return ChunkCounts(
        words_U=keys_P[first_U] >> 32,
        passages_U=np.diff(first_U, append=len(keys_P)),
        rows_P=(keys_P & 0xFFFF_FFFF).astype(np.int32),
        times_P=np.diff(first_P, append=len(keys_T)).astype(np.int32),
        lengths_N=lengths_N,
    )


def _firsts(sorted_T: Ints) -> Ints:
    """The start of each run of equal values in a sorted array."""
    if not len(sorted_T):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], sorted_T[1:] != sorted_T[:-1]]))


def joined_counts(chunks: list[ChunkCounts], words: Sequence[str]) -> WordCounts:
    """Join the counts of consecutive chunks, whose word u is `words[u]`. The list is emptied, to free memory."""
    order_V = sorted(range(len(words)), key=words.__getitem__)
    ranks_V = np.empty(len(words), dtype=np.int64)
    ranks_V[order_V] = np.arange(len(words))
    starts_V1 = np.zeros(len(words) + 1, dtype=np.int64)
    for chunk in chunks:
        starts_V1[ranks_V[chunk.words_U] + 1] += chunk.passages_U
    np.cumsum(starts_V1, out=starts_V1)
    rows_P = np.empty(starts_V1[-1], dtype=np.int32)
    largest = max((int(chunk.times_P.max(initial=0)) for chunk in chunks), default=0)
    times_P = np.empty(starts_V1[-1], dtype=np.min_scalar_type(largest))
    lengths = [chunk.lengths_N for chunk in chunks]
    next_V, row = starts_V1[:-1].copy(), 0
    while chunks:
        chunk = chunks.pop(0)
        ranks_U = ranks_V[chunk.words_U]
        # The chunk's pairs of word w go to next_V[w], next_V[w] + 1, …
        before_U = np.cumsum(chunk.passages_U) - chunk.passages_U
        places_P = np.repeat(next_V[ranks_U] - before_U, chunk.passages_U) + np.arange(len(chunk.rows_P))
        times_P[places_P] = chunk.times_P
        rows_P[places_P] = row + chunk.rows_P
        next_V[ranks_U] += chunk.passages_U
        row += len(chunk.lengths_N)
    lengths_N = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
    vocabulary = WordList.of([words[number] for number in order_V])
    return WordCounts(vocabulary, starts_V1, rows_P, times_P, lengths_N)


@dataclass(frozen=True, slots=True)
class WordBlock:
    """The pairs of consecutive words."""

    counts_W: Ints
    """Passages of each word; 0 for a word that no longer occurs."""
    rows_P: Rows32
    times_P: Times


def blocks_of(counts: WordCounts) -> Iterator[WordBlock]:
    """The pairs, some words at a time."""
    for first, last in _cuts(counts.starts_V1):
        pairs = slice(counts.starts_V1[first], counts.starts_V1[last])
        yield WordBlock(np.diff(counts.starts_V1[first : last + 1]), counts.rows_P[pairs], counts.times_P[pairs])


class Splice:
    """The counts of N passages, from those of an older corpus and of the passages that are not in it.

    F new pairs · U words of new passages
    """

    def __init__(self, old: WordCounts, rows_N: Ints, fresh: WordCounts, new_M: Ints) -> None:
        """`rows_N`: the row of each passage in `old`, −1 for those of `new_M`, which `fresh` counts in this order. No
        row of `old` comes twice."""
        self._old, self._fresh = old, fresh
        kept_N = np.flatnonzero(rows_N >= 0)
        self.lengths_N = np.empty(len(rows_N), dtype=np.int64)
        self.lengths_N[kept_N], self.lengths_N[new_M] = old.lengths_N[rows_N[kept_N]], fresh.lengths_N
        self._places_O = np.full(len(old.lengths_N), -1, dtype=np.int32)
        self._places_O[rows_N[kept_N]] = kept_N
        self._in_order = bool((np.diff(rows_N[kept_N]) > 0).all())
        self._rows_F = new_M[fresh.rows_P]
        self._at_U, self._known_U = old.vocabulary.places(fresh.vocabulary)

    def vocabulary(self, gone: Ints) -> bytes:
        """The contents of the file of words, without those at the rising places `gone` in `blocks`."""
        new_U = np.flatnonzero(~self._known_U)
        # An old word comes behind the new ones before it, and only old words go.
        gone = gone - np.searchsorted(self._at_U[new_U] + np.arange(len(new_U)), gone)
        inserted = [self._fresh.vocabulary[number] for number in new_U.tolist()]
        return self._old.vocabulary.edited(self._at_U[new_U], inserted, gone)

    def blocks(self) -> Iterator[WordBlock]:
        """The pairs of the words of either corpus, with those that no longer occur."""
        begun = 0
        for first, last in _cuts(self._old.starts_V1) or [(0, 0)]:
            is_end = last == len(self._old.vocabulary)
            ended = len(self._at_U) if is_end else int(np.searchsorted(self._at_U, last))
            yield self._block(first, last, slice(begun, ended))
            begun = ended

    def _block(self, first: int, last: int, some: slice) -> WordBlock:
        """The pairs of the old words from `first` up to `last`, and of the words `some` of the new passages."""
        starts_W1, rows_K, times_K = self._kept(first, last)
        at_U, known_U = self._at_U[some] - first, self._known_U[some]
        starts_U1 = self._fresh.starts_V1[some.start : some.stop + 1]
        counts_U, pairs = np.diff(starts_U1), slice(starts_U1[0], starts_U1[-1])
        rows_F, times_F = self._rows_F[pairs], self._fresh.times_P[pairs]
        low_F, high_F = np.repeat(starts_W1[at_U], counts_U), np.repeat(starts_W1[at_U + known_U], counts_U)
        places_F = _places(rows_K, low_F, high_F, rows_F)
        counts_W = np.insert(np.diff(starts_W1), at_U[~known_U], 0)
        counts_W[at_U + np.cumsum(~known_U) - ~known_U] += counts_U
        is_old_P = np.ones(len(rows_K) + len(rows_F), dtype=bool)
        is_old_P[places_F + np.arange(len(places_F))] = False
        rows_P, times_P = np.empty(len(is_old_P), np.int32), np.empty(len(is_old_P), np.result_type(times_K, times_F))
        for merged_P, kept_K, new_F in ((rows_P, rows_K, rows_F), (times_P, times_K, times_F)):
            merged_P[is_old_P], merged_P[~is_old_P] = kept_K, new_F
        return WordBlock(counts_W, rows_P, times_P)

    def _kept(self, first: int, last: int) -> tuple[Ints, Rows32, Times]:
        """The pairs of old words whose passages are left, in new rows: where each word starts, rows and times."""
        starts_W1 = self._old.starts_V1[first : last + 1]
        pairs, starts_W1 = slice(starts_W1[0], starts_W1[-1]), starts_W1 - starts_W1[0]
        rows_P, times_P = self._places_O.take(self._old.rows_P[pairs]), self._old.times_P[pairs]
        counts_W = np.diff(starts_W1)
        left_P = rows_P >= 0
        if not left_P.all():
            gone_P = np.searchsorted(starts_W1, np.flatnonzero(~left_P), side="right") - 1
            counts_W = counts_W - np.bincount(gone_P, minlength=len(counts_W))
            rows_P, times_P = rows_P[left_P], times_P[left_P]
        if not self._in_order:  # passages changed places
            order_P = np.argsort(np.repeat(np.arange(len(counts_W)) << 32, counts_W) | rows_P)
            rows_P, times_P = rows_P[order_P], times_P[order_P]
        return np.concatenate([[0], np.cumsum(counts_W)]), rows_P, times_P


def _cuts(starts_V1: Ints) -> list[tuple[int, int]]:
    """The first and the last word, exclusive, of blocks of about `BLOCK_PAIRS` pairs."""
    ends = np.searchsorted(starts_V1, np.arange(BLOCK_PAIRS, starts_V1[-1], BLOCK_PAIRS))
    cuts = np.unique(np.concatenate([[0], ends, [len(starts_V1) - 1]])).tolist()
    return list(pairwise(cuts))


def _places(rows_K: Rows32, low_F: Ints, high_F: Ints, rows_F: Ints) -> Ints:
    """Where each row belongs among the ascending `rows_K[low : high]`; a binary search for all at once."""
    while (open_F := low_F < high_F).any():
        middle_F = (low_F + high_F) // 2
        below_F = open_F & (rows_K[np.minimum(middle_F, len(rows_K) - 1)] < rows_F)
        low_F = np.where(below_F, middle_F + 1, low_F)
        high_F = np.where(open_F & ~below_F, middle_F, high_F)
    return low_F
