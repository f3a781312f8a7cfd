"""Ranking: the top rows of a score array, in a deterministic order."""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.data.passage import Hit, Passage
from coseek.retrieval.query import check_k

Scores: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.intp]


def top_rows(scores_N: Scores, k: int, above: float = -np.inf) -> Rows:
    """The rows of the `k` highest scores greater than `above`, best first; ties in row order. A partial sort alone
    would pick arbitrary rows among those tied at rank k. Here all rows that reach the k-th score enter a stable
    sort."""
    check_k(k)
    threshold = above
    if k < len(scores_N):
        # The k-th best score, in linear time.
        threshold = max(above, float(np.partition(scores_N, len(scores_N) - k)[len(scores_N) - k]))
    rows = np.flatnonzero(scores_N >= threshold if threshold > above else scores_N > above)
    order = np.argsort(-scores_N[rows], kind="stable")[:k]
    return rows[order]


def rank_hits(passages: Iterable[Passage]) -> list[Hit]:
    """Hits with the scores 1, 1/2, 1/3, … for passages in ranked order."""
    return [Hit(passage, 1.0 / rank) for rank, passage in enumerate(passages, start=1)]
