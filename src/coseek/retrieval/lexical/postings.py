"""Postings: the passages that contain each word, with the word's weight in them.

`best` skips passages that cannot reach the top k: it takes rare words first and bounds what the remaining words can add
(MaxScore, Turtle and Flood, 1995).

N passages · V words · P word-passage pairs
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
        place = slice(self.starts_V1[word], self.starts_V1[word + 1])
        return self.rows_P[place], self.weights_P[place]

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
        """Ascending rows that contain the `k` best."""
        counts = {word: words.count(word) for word in words}
        rarest = sorted(counts, key=lambda word: int(self.starts_V1[word + 1] - self.starts_V1[word]))
        bounds = [counts[word] * float(self.maxima_V[word]) for word in rarest]
        # The sums here are float64; the final float32 scores may deviate by 2⁻²⁴ per addition.
        safe = 1.0 - (len(words) + 2) * 2.0**-21
        rows, sums, floor = np.zeros(0, dtype=np.int32), np.zeros(0), 0.0
        for place, word in enumerate(rarest):
            rest = sum(bounds[place + 1 :])  # upper bound of what later words can add
            sums = sums + counts[word] * self._weights(word, rows)
            if bounds[place] + rest >= floor:
                own, weights = self.of(word)
                gains = weights.astype(np.float64) * counts[word]
                # A dropped row may re-enter with too small a sum; it cannot reach the top k in either case.
                enters = gains + rest >= floor
                rows, sums = _joined(rows, sums, own[enters], gains[enters])
            if len(rows) >= k and sum(bounds[: place + 1]) > rest:
                floor = max(floor, safe * float(np.partition(sums, len(sums) - k)[len(sums) - k]))
                kept = sums + rest >= floor
                rows, sums = rows[kept], sums[kept]
        return rows

    def _weights(self, word: int, rows: Rows32) -> Scores:
        """The weight of a word in each row, 0 if absent."""
        own, weights = self.of(word)
        places = np.minimum(np.searchsorted(own, rows), len(own) - 1)
        return np.where(own[places] == rows, weights[places], np.float32(0))

    def _scores_of(self, rows: Rows32, words: Sequence[int]) -> Scores:
        """Like `scores`, for some rows. Adding 0 for an absent word changes no bit."""
        known = {word: self._weights(word, rows) for word in set(words)}
        scores = np.zeros(len(rows), dtype=np.float32)
        for word in words:
            scores += known[word]
        return scores


def _joined(rows_A: Rows32, sums_A: Sums, rows_B: Rows32, sums_B: Sums) -> tuple[Rows32, Sums]:
    """Merge two ascending lists of rows; a row in both keeps the sum of A."""
    if not len(rows_A):
        return rows_B, sums_B
    new = rows_A[np.minimum(np.searchsorted(rows_A, rows_B), len(rows_A) - 1)] != rows_B
    rows = np.concatenate([rows_A, rows_B[new]])
    order = np.argsort(rows, kind="stable")  # a stable sort merges two sorted runs in linear time
    return rows[order], np.concatenate([sums_A, sums_B[new]])[order]
