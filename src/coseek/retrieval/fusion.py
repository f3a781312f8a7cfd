"""Fusion: one ranking out of several."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Literal, TypeAlias

import numpy as np

SMOOTHING = 60
"""Cormack, Clarke and Büttcher (SIGIR 2009): how little the first ranks stand out from the next."""

Scale: TypeAlias = Literal["min-max", "z"]
"""How the scores of one ranking are made comparable with those of another: see `scaled`."""


def reciprocal_rank_fusion(
    lists: Iterable[Sequence[str]], smoothing: float = SMOOTHING, weights: Iterable[float] | None = None
) -> dict[str, float]:
    """Score of every id: Σ over the lists of weight · (1 + smoothing) / (rank + smoothing), rank from 1.

    The numerator makes a first place worth 1 and changes no order; a list weighs 1 when no weights are given. An id
    that stands twice in a list counts once, where it stands first. Best first; equal scores keep the order of first
    sight.
    """
    scores: dict[str, float] = {}
    for ranked, weight in zip(lists, repeat(1.0) if weights is None else weights, strict=weights is not None):
        for rank, ident in enumerate(dict.fromkeys(ranked), start=1):
            scores[ident] = scores.get(ident, 0.0) + weight * (1 + smoothing) / (rank + smoothing)
    return best_first(scores)


def weighted_fusion(lists: Sequence[Mapping[str, float]], weights: Sequence[float], scale: Scale) -> dict[str, float]:
    """Score of every id: Σ over the lists of weight · scaled score; a list that does not hold the id adds 0.

    Best first; equal scores keep the order of first sight.
    """
    scores: dict[str, float] = {}
    for ranked, weight in zip(lists, weights, strict=True):
        for ident, score in zip(ranked, scaled(list(ranked.values()), scale), strict=True):
            scores[ident] = scores.get(ident, 0.0) + weight * score
    return best_first(scores)


def scaled(scores: Sequence[float], scale: Scale) -> list[float]:
    """Finite scores of one ranking on a scale that its worst candidate begins at 0, where those not found are, too.

    `min-max`: (s − min) / (max − min). `z`: (s − min) / standard deviation, which is the z-score moved so that nothing
    that was found lies below what was not. Where all scores are equal, one hit included, each is 1: being found counts.
    """
    if not scores:
        return []
    values = np.asarray(scores, dtype=np.float64)
    # Halved before they are subtracted, so that the widest float64 range does not overflow.
    spread = float(values.max() / 2 - values.min() / 2)
    if spread == 0.0:
        return [1.0] * len(scores)
    unit = (values / 2 - values.min() / 2) / spread  # min-max; of it z, whose squares cannot underflow then
    return [float(value) for value in (unit if scale == "min-max" else unit / unit.std())]


def best_first(scores: Mapping[str, float]) -> dict[str, float]:
    """Sorted by falling score; equal scores keep their order."""
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
