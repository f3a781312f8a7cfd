"""Ranking: the top rows of a score array in a deterministic order, and the fusion of several rankings."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.data.passage import Hit, Passage

Scores: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.intp]


def top_rows(scores_N: Scores, k: int, above: float = -np.inf) -> Rows:
    """The rows of the `k` highest scores greater than `above`, best first; ties in row order. A partial sort alone
    would pick arbitrary rows among those tied at rank k. Here all rows that reach the k-th score enter a stable
    sort."""
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


# Fusion: combines several rankings into one.

SMOOTHING = 60
"""The constant of reciprocal rank fusion (Cormack et al., SIGIR 2009). Larger values flatten the ranks."""

Scale: TypeAlias = Literal["min-max", "z"]
"""How scores are normalised within a ranking: see `scaled`."""


def reciprocal_rank_fusion(
    lists: Iterable[Sequence[str]], smoothing: float = SMOOTHING, weights: Iterable[float] | None = None
) -> dict[str, float]:
    """Score of each id: Σ over lists of weight · (1 + smoothing) / (rank + smoothing), with ranks from 1. The factor 1
    + smoothing gives a first place the score 1 and changes no order. Without `weights` each list has weight 1. A
    repeated id counts at its first rank only. Sorted best first; ties keep the order of first occurrence."""
    scores: dict[str, float] = {}
    for ranked, weight in zip(lists, repeat(1.0) if weights is None else weights, strict=weights is not None):
        for rank, ident in enumerate(dict.fromkeys(ranked), start=1):
            scores[ident] = scores.get(ident, 0.0) + weight * (1 + smoothing) / (rank + smoothing)
    return best_first(scores)


def weighted_fusion(
    lists: Sequence[Mapping[str, float]],
    weights: Sequence[float],
    scale: Scale,
    max_hits: int,
    absent: Sequence[float | None],
) -> dict[str, float]:
    """Score of each id: Σ over lists of weight · scaled score. A list without the id contributes 0. `max_hits` and
    `absent`, one value per list, are those of `scaled`. Sorted best first; ties keep the order of first occurrence."""
    scores: dict[str, float] = {}
    for ranked, weight, absent_score in zip(lists, weights, absent, strict=True):
        for ident, score in zip(ranked, scaled(list(ranked.values()), scale, max_hits, absent_score), strict=True):
            scores[ident] = scores.get(ident, 0.0) + weight * score
    return best_first(scores)


def scaled(scores: Sequence[float], scale: Scale, max_hits: int = 0, absent: float | None = None) -> list[float]:
    """Normalise the finite scores of one ranking so that the lowest becomes 0, the value of an absent id.

    `min-max`: (s − min) / (max − min). `z`: (s − min) / standard deviation, that is the z-score shifted to a minimum of
    0. If all scores are equal, each becomes 1. A ranking of fewer than `max_hits` ids is padded with the score
    `absent` of all others, if known: otherwise a single hit would have nothing to stand out from.
    """
    if not scores:
        return []
    values = np.asarray(scores, dtype=np.float64)
    if absent is not None:
        values = np.concatenate([values, np.full(max(0, max_hits - len(values)), absent)])
    # Halving before subtracting avoids overflow over the widest float64 range.
    half_range = float(values.max() / 2 - values.min() / 2)
    if half_range == 0.0:
        return [1.0] * len(scores)
    # z is computed from min-max, so that its squares cannot underflow.
    unit = (values / 2 - values.min() / 2) / half_range
    return [float(value) for value in (unit if scale == "min-max" else unit / unit.std())[: len(scores)]]


def best_first(scores: Mapping[str, float]) -> dict[str, float]:
    """Sort by descending score. The sort is stable."""
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
