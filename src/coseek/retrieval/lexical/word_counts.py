"""Word counts: how often each word occurs in each passage, from which an index is weighed.

They are counted in chunks, so that only numbers are held for the whole corpus.

N passages · V words · P word-passage pairs · U distinct words of a chunk
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coseek.retrieval.lexical.postings import Ints, Rows32

Times = NDArray[np.unsignedinteger]

BLOCK_PAIRS = 262_144
"""Pairs of a block: arrays of this length stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class WordCounts:
    """The counts of a corpus. Word w occupies `starts_V1[w] : starts_V1[w + 1]`; every word occurs."""

    vocabulary: list[str]
    """In the order of code points."""
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
    return WordCounts([words[number] for number in order_V], starts_V1, rows_P, times_P, lengths_N)


def blocks_of(counts: WordCounts) -> Iterator[tuple[slice, Ints]]:
    """The pairs in blocks of about `BLOCK_PAIRS`: the places of the pairs of consecutive words, and the passages of
    each word."""
    starts_V1 = counts.starts_V1
    ends = np.searchsorted(starts_V1, np.arange(BLOCK_PAIRS, starts_V1[-1], BLOCK_PAIRS))
    for first, last in pairwise(np.unique(np.concatenate([[0], ends, [len(starts_V1) - 1]])).tolist()):
        yield slice(starts_V1[first], starts_V1[last]), np.diff(starts_V1[first : last + 1])
