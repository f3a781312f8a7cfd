"""Word counts: how often each word occurs in each passage, what an index is weighed from and updated with.

They are counted in chunks, so that only numbers are held for the whole corpus.

N passages · V words · P word-passage pairs · U distinct words of a chunk
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from coseek.retrieval.lexical.postings import Ints, Rows32

Times = NDArray[np.unsignedinteger]
A = TypeVar("A", bound=NDArray[np.generic])


@dataclass(frozen=True, slots=True)
class WordCounts:
    """The counts of a corpus. Word w occupies `starts_V1[w] : starts_V1[w + 1]`; every word occurs."""

    vocabulary: list[str]
    """In the order of code points."""
    starts_V1: Ints
    rows_P: Rows32
    """Ascending within a word."""
    times_P: Times
    """In the smallest unsigned type that holds them all."""
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
    return WordCounts([words[number] for number in order_V], starts_V1, rows_P, times_P, lengths_N)


def merged(old: WordCounts, rows_N: Ints, fresh: WordCounts, new_M: Ints) -> WordCounts:
    """The counts of N passages: `rows_N` is the row of each in `old`, −1 for those of `new_M`, which `fresh` counts in
    this order. No row of `old` comes twice. Equal to counting all N."""
    lengths_N = np.empty(len(rows_N), dtype=np.int64)
    lengths_N[rows_N >= 0], lengths_N[new_M] = old.lengths_N[rows_N[rows_N >= 0]], fresh.lengths_N
    starts_V1, rows_K, times_K = _kept(old, rows_N)
    ats = [bisect_left(old.vocabulary, word) for word in fresh.vocabulary]
    known = [
        at < len(old.vocabulary) and old.vocabulary[at] == word for at, word in zip(ats, fresh.vocabulary, strict=True)
    ]
    at_U, known_U, counts_U = np.array(ats, dtype=np.int64), np.array(known, dtype=bool), np.diff(fresh.starts_V1)
    rows_F = new_M[fresh.rows_P].astype(np.int32)
    low_F = np.repeat(starts_V1[at_U], counts_U)
    places_F = _places(rows_K, low_F, np.repeat(starts_V1[at_U + known_U], counts_U), rows_F) + np.arange(len(rows_F))
    is_new_P = np.zeros(len(rows_K) + len(rows_F), dtype=bool)
    is_new_P[places_F] = True
    counts_V = np.insert(np.diff(starts_V1), at_U[~known_U], 0)
    counts_V[at_U + np.cumsum(~known_U) - ~known_U] += counts_U
    added = [word for word, is_known in zip(fresh.vocabulary, known, strict=True) if not is_known]
    vocabulary = sorted(old.vocabulary + added)  # two sorted runs are merged in linear time
    if not counts_V.all():
        vocabulary = [vocabulary[word] for word in np.flatnonzero(counts_V).tolist()]
    largest = max(int(times.max(initial=0)) for times in (times_K, fresh.times_P))
    times_P = _spliced(is_new_P, times_K, fresh.times_P, np.min_scalar_type(largest))
    starts_V1 = np.concatenate([[0], np.cumsum(counts_V[counts_V > 0])])
    return WordCounts(vocabulary, starts_V1, _spliced(is_new_P, rows_K, rows_F, np.dtype(np.int32)), times_P, lengths_N)


def _kept(old: WordCounts, rows_N: Ints) -> tuple[Ints, Rows32, Times]:
    """The pairs of the passages that are left, in new rows: where each old word starts, rows and times."""
    places_O = np.full(len(old.lengths_N), -1, dtype=np.int32)
    places_O[rows_N[rows_N >= 0]] = np.flatnonzero(rows_N >= 0)
    rows_P, times_P, counts_V = places_O[old.rows_P], old.times_P, np.diff(old.starts_V1)
    if len(gone := np.flatnonzero(rows_P < 0)):
        counts_V -= np.bincount(np.searchsorted(old.starts_V1, gone, side="right") - 1, minlength=len(counts_V))
        rows_P, times_P = rows_P[left_P := rows_P >= 0], times_P[left_P]
    if (np.diff(rows_N[rows_N >= 0]) < 0).any():  # passages changed places
        order_P = np.argsort(np.repeat(np.arange(len(counts_V)) << 32, counts_V) | rows_P)
        rows_P, times_P = rows_P[order_P], times_P[order_P]
    return np.concatenate([[0], np.cumsum(counts_V)]), rows_P, times_P


def _places(rows_K: Rows32, low_F: Ints, high_F: Ints, rows_F: Rows32) -> Ints:
    """Where each row belongs among the ascending `rows_K[low : high]`; a binary search for all at once."""
    while (open_F := low_F < high_F).any():
        middle_F = (low_F + high_F) // 2
        below_F = open_F & (rows_K[np.minimum(middle_F, len(rows_K) - 1)] < rows_F)
        low_F = np.where(below_F, middle_F + 1, low_F)
        high_F = np.where(open_F & ~below_F, middle_F, high_F)
    return low_F


def _spliced(is_new_P: NDArray[np.bool_], kept_K: A, new_F: A, kind: "np.dtype[np.generic]") -> A:
    """One array of kept and new entries."""
    found_P = cast(A, np.empty(len(is_new_P), dtype=kind))
    found_P[~is_new_P], found_P[is_new_P] = kept_K, new_F
    return found_P
