"""Fusion: one ranking out of several."""

from collections.abc import Iterable, Sequence

SMOOTHING = 60
"""Cormack, Clarke and Büttcher (SIGIR 2009): how little the first ranks stand out from the next."""


def reciprocal_rank_fusion(lists: Iterable[Sequence[str]], smoothing: float = SMOOTHING) -> dict[str, float]:
    """Score of every id: Σ over the lists of (1 + smoothing) / (rank + smoothing), rank from 1.

    The numerator makes a first place worth 1 and changes no order. An id that stands twice in a list counts once, where
    it stands first. Best first; equal scores keep the order of first sight.
    """
    scores: dict[str, float] = {}
    for ranked in lists:
        for rank, ident in enumerate(dict.fromkeys(ranked), start=1):
            scores[ident] = scores.get(ident, 0.0) + (1 + smoothing) / (rank + smoothing)
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
