"""Postings: which passages hold a word, and what the word is worth there. Knows no text and no formula's settings.

Made in chunks, so that only numbers are ever held for the whole corpus. Searched without looking at every passage:
`best` takes the rarest words first and leaves out what can no longer come among the first k (the idea of MaxScore:
Turtle and Flood, 1995).

N passages · V words · P word-passage pairs · U different words of a chunk
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.retrieval.ranking import Rows, Scores, top_rows

Ints: TypeAlias = NDArray[np.int64]
Rows32: TypeAlias = NDArray[np.int32]
Sums: TypeAlias = NDArray[np.float64]

FEW_ROWS = 16_384
"""With so few passages, adding up a score for each of them is quicker than choosing which to look at."""


@dataclass(frozen=True)
class Postings:
    """Every word's passages and weights (all > 0): those of word w stand at `starts_V1[w] : starts_V1[w + 1]`."""

    weights_P: Scores
    rows_P: Rows32
    """Rising within a word."""
    starts_V1: Ints
    maxima_V: Scores
    """The greatest weight of each word."""
    passages: int

    def of(self, word: int) -> tuple[Rows32, Scores]:
        """Rows and weights of one word."""
        place = slice(self.starts_V1[word], self.starts_V1[word + 1])
        return self.rows_P[place], self.weights_P[place]

    def scores(self, words: Sequence[int]) -> Scores:
        """The score of every passage: the float32 sum of its weights in the order of `words`; repeats count again."""
        scores_N = np.zeros(self.passages, dtype=np.float32)
        for word in words:
            rows, weights = self.of(word)
            scores_N[rows] += weights  # a passage stands once in a word's postings, so no addition is lost
        return scores_N

    def best(self, words: Sequence[int], k: int, few_rows: int = FEW_ROWS) -> tuple[Rows, Scores]:
        """Rows and scores of the `k` best passages: exactly those that `scores` would give, with the same ties."""
        if self.passages <= few_rows:
            scores_N = self.scores(words)
            rows = top_rows(scores_N, k, above=0.0)
            return rows, scores_N[rows]
        candidates = self._candidates(words, k)
        scores = self._scores_of(candidates, words)
        order = top_rows(scores, k, above=0.0)
        return candidates[order].astype(np.intp), scores[order]

    def _candidates(self, words: Sequence[int], k: int) -> Rows32:
        """Rows, rising, among which the `k` best certainly are."""
        counts = {word: words.count(word) for word in words}
        rarest = sorted(counts, key=lambda word: int(self.starts_V1[word + 1] - self.starts_V1[word]))
        bounds = [counts[word] * float(self.maxima_V[word]) for word in rarest]
        # Sums here are of float64 and final scores are of float32, whose every addition may be off by 2⁻²⁴.
        safe = 1.0 - (len(words) + 2) * 2.0**-21
        rows, sums, floor = np.zeros(0, dtype=np.int32), np.zeros(0), 0.0
        for place, word in enumerate(rarest):
            rest = sum(bounds[place + 1 :])  # what the words after this one may still add
            sums = sums + counts[word] * self._weights(word, rows)
            if bounds[place] + rest >= floor:
                own, weights = self.of(word)
                gains = weights.astype(np.float64) * counts[word]
                # A row that was dropped may come back with too small a sum; it stays behind the first k either way.
                enters = gains + rest >= floor
                rows, sums = _joined(rows, sums, own[enters], gains[enters])
            if len(rows) >= k and sum(bounds[: place + 1]) > rest:
                floor = max(floor, safe * float(np.partition(sums, len(sums) - k)[len(sums) - k]))
                kept = sums + rest >= floor
                rows, sums = rows[kept], sums[kept]
        return rows

    def _weights(self, word: int, rows: Rows32) -> Scores:
        """The word's weight in each of the rows, 0 where it is not."""
        own, weights = self.of(word)
        places = np.minimum(np.searchsorted(own, rows), len(own) - 1)
        return np.where(own[places] == rows, weights[places], np.float32(0))

    def _scores_of(self, rows: Rows32, words: Sequence[int]) -> Scores:
        """As `scores`, for these rows alone: adding the 0 of a word that is not there changes no bit."""
        known = {word: self._weights(word, rows) for word in set(words)}
        scores = np.zeros(len(rows), dtype=np.float32)
        for word in words:
            scores += known[word]
        return scores


def _joined(rows_A: Rows32, sums_A: Sums, rows_B: Rows32, sums_B: Sums) -> tuple[Rows32, Sums]:
    """Two rising lists of rows as one; of a row in both, the sum of A."""
    if not len(rows_A):
        return rows_B, sums_B
    new = rows_A[np.minimum(np.searchsorted(rows_A, rows_B), len(rows_A) - 1)] != rows_B
    rows = np.concatenate([rows_A, rows_B[new]])
    order = np.argsort(rows, kind="stable")  # merges two sorted runs in one go
    return rows[order], np.concatenate([sums_A, sums_B[new]])[order]


@dataclass(frozen=True, slots=True)
class Counted:
    """A chunk of passages as numbers, sorted by word, then row."""

    words_U: Ints
    passages_U: Ints
    """How many passages of the chunk hold each word."""
    rows_P: Rows32
    times_P: Rows32
    """How often the word stands in the passage."""
    lengths_N: Ints
    """Words of each passage."""


def count_words(words_T: Rows32, lengths_N: Ints) -> Counted:
    """Count a chunk: `words_T` holds the words of its passages one after the other; a negative one does not count."""
    rows_T = np.repeat(np.arange(len(lengths_N)), lengths_N)
    counted = words_T >= 0
    keys_T = words_T[counted].astype(np.int64) << 32 | rows_T[counted]
    lengths_N = np.bincount(rows_T[counted], minlength=len(lengths_N))
    keys_T.sort()
    first_P = _firsts(keys_T)
    keys_P = keys_T[first_P]
    first_U = _firsts(keys_P >> 32)
    return Counted(
        words_U=keys_P[first_U] >> 32,
        passages_U=np.diff(first_U, append=len(keys_P)),
        rows_P=(keys_P & 0xFFFF_FFFF).astype(np.int32),
        times_P=np.diff(first_P, append=len(keys_T)).astype(np.int32),
        lengths_N=lengths_N,
    )


def _firsts(sorted_T: Ints) -> Ints:
    """Where each different value of a sorted array begins."""
    if not len(sorted_T):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], sorted_T[1:] != sorted_T[:-1]]))
