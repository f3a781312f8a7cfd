"""Ranking: the best rows of a score array, in an order that is the same every time."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.retrieval.query import check_k

Scores: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.intp]


def top_rows(scores_N: Scores, k: int, above: float = -np.inf) -> Rows:
    """Rows of the `k` best scores greater than `above`, best first; equal scores keep row order.

    A plain partial sort picks any of the rows that tie for the last place; here everything that reaches the k-th
    score stays in until a stable sort has put the earliest rows first.
    """
    check_k(k)
    threshold = above
    if k < len(scores_N):
        # The k-th best score, by a partial sort that touches every score once.
        threshold = max(above, float(np.partition(scores_N, len(scores_N) - k)[len(scores_N) - k]))
    rows = np.flatnonzero(scores_N >= threshold if threshold > above else scores_N > above)
    order = np.argsort(-scores_N[rows], kind="stable")[:k]
    return rows[order]
