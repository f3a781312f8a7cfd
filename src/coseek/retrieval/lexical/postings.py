"""Postings: the passages that contain each word, with the word's weight in them.

`best` skips passages that cannot reach the top k: it takes rare words first and bounds what the remaining words can add
(MaxScore, Turtle and Flood, 1995).

N passages · V words · P word-passage pairs
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.retrieval.ranking import Rows, Scores, top_rows

Ints: TypeAlias = NDArray[np.int64]
Rows32: TypeAlias = NDArray[np.int32]
Sums: TypeAlias = NDArray[np.float64]

FEW_ROWS = 16_384
"""Up to this many passages, scoring all of them is faster than pruning."""


@dataclass(frozen=True)
class Postings:
    """Passages and weights of every word, all weights > 0. Word w occupies `starts_V1[w] : starts_V1[w + 1]`."""

    weights_P: Scores
    rows_P: Rows32
    """Ascending within a word."""
    starts_V1: Ints
    maxima_V: Scores
    passages: int

    def of(self, word: int) -> tuple[Rows32, Scores]:
        """Rows and weights of one word."""
        span = slice(self.starts_V1[word], self.starts_V1[word + 1])
        return self.rows_P[span], self.weights_P[span]

    def scores(self, words: Sequence[int]) -> Scores:
        """The score of every passage: the float32 sum of its weights in the order of `words`, repetitions included."""
        scores_N = np.zeros(self.passages, dtype=np.float32)
        for word in words:
            rows, weights = self.of(word)
            scores_N[rows] += weights  # rows are unique within a word, so no addition is lost
        return scores_N

    def best(self, words: Sequence[int], k: int, few_rows: int = FEW_ROWS) -> tuple[Rows, Scores]:
        """Rows and scores of the `k` best passages, equal to ranking `scores`, ties included."""
        if self.passages <= few_rows:
            scores_N = self.scores(words)
            rows = top_rows(scores_N, k, above=0.0)
            return rows, scores_N[rows]
        candidates = self._candidates(words, k)
        scores = self._scores_of(candidates, words)
        order = top_rows(scores, k, above=0.0)
        return candidates[order].astype(np.intp), scores[order]

    def _candidates(self, words: Sequence[int], k: int) -> Rows32:
        """Ascending rows, the `k` best among them."""
        counts = {word: words.count(word) for word in words}
        rarest = sorted(counts, key=lambda word: int(self.starts_V1[word + 1] - self.starts_V1[word]))
        bounds = [counts[word] * float(self.maxima_V[word]) for word in rarest]
        # The sums here are float64; the final float32 scores may deviate by 2⁻²⁴ per addition.
        rounding = 1.0 - (len(words) + 2) * 2.0**-21
        rows, sums, floor = np.zeros(0, dtype=np.int32), np.zeros(0), 0.0
        for number, word in enumerate(rarest):
            rest_bound = sum(bounds[number + 1 :])  # upper bound of the gains by later words
            sums = sums + counts[word] * self._weights(word, rows)
            if bounds[number] + rest_bound >= floor:
                word_rows, weights = self.of(word)
                gains = weights.astype(np.float64) * counts[word]
                # A dropped row may re-enter with too small a sum; it cannot reach the top k in either case.
                can_enter = gains + rest_bound >= floor
                rows, sums = _merge(rows, sums, word_rows[can_enter], gains[can_enter])
            if len(rows) >= k and sum(bounds[: number + 1]) > rest_bound:
                floor = max(floor, rounding * float(np.partition(sums, len(sums) - k)[len(sums) - k]))
                can_reach = sums + rest_bound >= floor
                rows, sums = rows[can_reach], sums[can_reach]
        return rows

    def _weights(self, word: int, rows: Rows32) -> Scores:
        """The weight of a word in each row, 0 if absent."""
        word_rows, weights = self.of(word)
        indices = np.minimum(np.searchsorted(word_rows, rows), len(word_rows) - 1)
        return np.where(word_rows[indices] == rows, weights[indices], np.float32(0))

    def _scores_of(self, rows: Rows32, words: Sequence[int]) -> Scores:
        """Like `scores`, for some rows. Adding 0 for an absent word changes no bit."""
        weights = {word: self._weights(word, rows) for word in set(words)}
        scores = np.zeros(len(rows), dtype=np.float32)
        for word in words:
            scores += weights[word]
        return scores


def _merge(rows_A: Rows32, sums_A: Sums, rows_B: Rows32, sums_B: Sums) -> tuple[Rows32, Sums]:
    """Merge two ascending lists of rows; a row in both keeps the sum of A."""
    if not len(rows_A):
        return rows_B, sums_B
    is_new = rows_A[np.minimum(np.searchsorted(rows_A, rows_B), len(rows_A) - 1)] != rows_B
    rows = np.concatenate([rows_A, rows_B[is_new]])
    order = np.argsort(rows, kind="stable")  # a stable sort merges two sorted runs in linear time
    return rows[order], np.concatenate([sums_A, sums_B[is_new]])[order]


# Word counts: how often each word occurs in each passage, from which the weights of an index are computed.
#
# They are counted in chunks, so that only numbers are in memory for the whole corpus.
#
# U distinct words of a chunk

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
    """In the smallest sufficient unsigned type."""
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
    is_term_T = words_T >= 0
    keys_T = words_T[is_term_T].astype(np.int64) << 32 | rows_T[is_term_T]
    lengths_N = np.bincount(rows_T[is_term_T], minlength=len(lengths_N))
    keys_T.sort()
    first_P = _run_starts(keys_T)
    keys_P = keys_T[first_P]
    first_U = _run_starts(keys_P >> 32)
    return ChunkCounts(
        words_U=keys_P[first_U] >> 32,
        passages_U=np.diff(first_U, append=len(keys_P)),
        rows_P=(keys_P & 0xFFFF_FFFF).astype(np.int32),
        times_P=np.diff(first_P, append=len(keys_T)).astype(np.int32),
        lengths_N=lengths_N,
    )


def _run_starts(sorted_T: Ints) -> Ints:
    """The start of each run of equal values in a sorted array."""
    if not len(sorted_T):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], sorted_T[1:] != sorted_T[:-1]]))


def join_counts(chunks: list[ChunkCounts], words: Sequence[str]) -> WordCounts:
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
        targets_P = np.repeat(next_V[ranks_U] - before_U, chunk.passages_U) + np.arange(len(chunk.rows_P))
        times_P[targets_P] = chunk.times_P
        rows_P[targets_P] = row + chunk.rows_P
        next_V[ranks_U] += chunk.passages_U
        row += len(chunk.lengths_N)
    lengths_N = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
    return WordCounts([words[number] for number in order_V], starts_V1, rows_P, times_P, lengths_N)


def blocks_of(starts_V1: Ints) -> Iterator[tuple[slice, slice]]:
    """Blocks of about `BLOCK_PAIRS` pairs: the slices of consecutive words, and of their pairs."""
    ends = np.searchsorted(starts_V1, np.arange(BLOCK_PAIRS, starts_V1[-1], BLOCK_PAIRS))
    for first, last in pairwise(np.unique(np.concatenate([[0], ends, [len(starts_V1) - 1]])).tolist()):
        yield slice(first, last), slice(starts_V1[first], starts_V1[last])
