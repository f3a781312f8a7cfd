"""Shortlist: finds the k best rows for certain out of scores that are only nearly right.

The score of a row is defined here, once (`scores_of`): the inner product with the query in float64. A search computes
something faster, an approximation with a proven bound on its error, so that every row has a score between a lower and
an upper bound. A row whose upper bound stays under k lower bounds of others cannot be among the k best; what remains is
scored as defined and ranked, equal scores by row. The result depends on neither blocks nor batches nor the machine.

    Q queries · B rows of a block · M pairs of a row and a query · K hits
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import RetrieverError
from coseek.retrieval.query import check_k
from coseek.retrieval.vectors.block_scores import GROUP, Doubles, Integers, Product, below, reaching
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore

Queries: TypeAlias = NDArray[np.float32]
ROUNDING = 2.0**-53
"""Relative error of one float64 operation."""
_SLACK = 1.0 + 2.0**-40
"""Bounds are computed in float64, too, by a handful of operations: this covers their own rounding."""
_FIRST_ROWS = 1 << 16
"""Rows whose products wait for the first floor: 16 MB with 64 queries."""
_FEW, _MANY = 1 << 13, 1 << 20
"""Pairs that may gather before they are sifted; pairs that may wait (40 MB) before they are scored after all."""
_WIDE = 1 << 18
"""Numbers multiplied in one go when pairs are scored: 2 MB of float64, which stays in the cache."""


class SearchResult(NamedTuple):
    """What a search found."""

    rows_QK: Rows
    scores_QK: NDArray[np.float32]
    """The float64 scores that ranked, rounded for display."""
    rescored_Q: Integers
    """Rows whose score was computed as defined, a query."""


def scores_of(vectors_MD: Floats, queries_MD: Queries) -> Doubles:
    """The score of each pair: the sum of the products in float64, pairwise along the row as numpy adds.

    Products of float32 numbers are exact in float64; the sum is off by less than D · 2⁻⁵³ · ‖x‖‖q‖.
    """
    scores_M: Doubles = np.multiply(vectors_MD, queries_MD, dtype=np.float64, order="C").sum(axis=1)
    return scores_M


def score_error(dim: int) -> float:
    """How far `scores_of` may be from the real inner product, as a factor of ‖x‖‖q‖ (twice the bound, to be safe)."""
    return 2.0 * dim * ROUNDING


def check_queries(queries_QD: Queries, dim: int, k: int) -> Queries:
    """The queries as contiguous float32; other dimensions and numbers that are not finite are refused."""
    check_k(k)
    if queries_QD.ndim != 2 or queries_QD.shape[1] != dim:
        raise RetrieverError(f"queries of shape {queries_QD.shape} cannot be compared with vectors of {dim} dimensions")
    queries_QD = np.ascontiguousarray(queries_QD, dtype=np.float32)
    if not np.isfinite(queries_QD).all():
        row = int(np.flatnonzero(~np.isfinite(queries_QD).all(axis=1))[0])
        raise RetrieverError(f"the vector of query {row} holds a number that is not finite")
    return queries_QD


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the approximate scores of a block may be off: |score − unit · product| ≤ coarse · whole + fine · rest."""

    unit_Q: Doubles
    coarse_B: Doubles
    whole_Q: Doubles
    fine_B: Doubles
    rest_Q: Doubles

    def of(self, places_M: Integers, queries_M: Integers) -> Doubles:
        found_M = self.coarse_B[places_M] * self.whole_Q[queries_M] + self.fine_B[places_M] * self.rest_Q[queries_M]
        return found_M * _SLACK

    @property
    def worst_Q(self) -> Doubles:
        """For any row of the block."""
        worst_Q: Doubles = (self.coarse_B.max() * self.whole_Q + self.fine_B.max() * self.rest_Q) * _SLACK
        return worst_Q


@dataclass
class _Pool:
    """Pairs that may still be among the best."""

    queries_M: Integers
    rows_M: Rows
    lower_M: Doubles
    upper_M: Doubles
    """Equal to `lower_M` once the pair is scored as defined."""

    @classmethod
    def empty(cls) -> "_Pool":
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, np.zeros(0), np.zeros(0))

    def __len__(self) -> int:
        return len(self.rows_M)

    def where(self, keep_M: NDArray[np.bool_] | Integers) -> "_Pool":
        return _Pool(self.queries_M[keep_M], self.rows_M[keep_M], self.lower_M[keep_M], self.upper_M[keep_M])

    @classmethod
    def joined(cls, pools: "Sequence[_Pool]") -> "_Pool":
        return cls(
            np.concatenate([pool.queries_M for pool in pools]),
            np.concatenate([pool.rows_M for pool in pools]),
            np.concatenate([pool.lower_M for pool in pools]),
            np.concatenate([pool.upper_M for pool in pools]),
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """What a scan shows of some rows."""

    product_BQ: Product
    peaks_GQ: Product
    rows_B: Rows
    bounds: Bounds


class Shortlist:
    """Takes block after block, in any order, each row once; `found` then says what is best."""

    def __init__(self, store: VectorStore, queries_QD: Queries, k: int) -> None:
        self._store = store
        self._queries_QD = queries_QD
        self._k = min(k, len(store))
        self._floor_Q = np.full(len(queries_QD), -np.inf)
        self._pools = [_Pool.empty()]
        self._size, self._enough = 0, 2 * _FEW
        self._seen, self._score_at = 0, _FIRST_ROWS
        self._waiting: list[_Block] = []
        self._looking = False
        self._rescored_Q = np.zeros(len(queries_QD), dtype=np.int64)

    def take(self, product_BQ: Product, peaks_GQ: Product, rows_B: Rows, bounds: Bounds) -> None:
        """Look at a block. Its product has a multiple of GROUP rows; rows and columns beyond the real ones are padding.

        The product holds no NaN; `peaks_GQ` is `peaks_of(product_BQ)`.
        """
        if self._looking:
            self._look(_Block(product_BQ, peaks_GQ, rows_B, bounds))
            return
        # The first blocks wait: the more rows the first floor comes from, the fewer pairs pass under it.
        kept_BQ = product_BQ.copy() if isinstance(product_BQ, np.ndarray) else product_BQ.clone()
        self._waiting.append(_Block(kept_BQ, peaks_GQ, rows_B, bounds))
        if sum(len(block.rows_B) for block in self._waiting) >= max(_FIRST_ROWS, 2 * GROUP * min(self._k, 8_192)):
            self._start()

    def found(self) -> SearchResult:
        """The k best rows of every query."""
        self._start()
        self._score_best()
        self._score(np.arange(len(self._pool)))
        best = self._pool.where(self._ranking())
        shape = (len(self._floor_Q), self._k)
        largest = float(np.finfo(np.float32).max)
        scores_QK = best.lower_M.clip(-largest, largest).astype(np.float32).reshape(shape)
        return SearchResult(best.rows_M.reshape(shape), scores_QK, self._rescored_Q)

    def _start(self) -> None:
        """k rows of k groups have lower bounds: a floor before anything is looked at closely."""
        lowers_QG = np.concatenate([np.zeros((len(self._floor_Q), 0)), *map(self._peak_lowers, self._waiting)], axis=1)
        if lowers_QG.shape[1] >= self._k:
            self._floor_Q = np.partition(lowers_QG, -self._k, axis=1)[:, -self._k]
        self._looking = True
        for block in self._waiting:
            self._look(block)
        self._waiting = []

    def _peak_lowers(self, block: _Block) -> Doubles:
        """Lower bounds of the best score in every group that holds real rows only."""
        peaks_GQ = block.peaks_GQ if isinstance(block.peaks_GQ, np.ndarray) else block.peaks_GQ.cpu().numpy()
        groups = len(block.rows_B) // GROUP
        middle_GQ = peaks_GQ[:groups, : len(self._floor_Q)] * block.bounds.unit_Q
        return (middle_GQ - np.abs(middle_GQ) * (4.0 * ROUNDING) - block.bounds.worst_Q).T

    def _look(self, block: _Block) -> None:
        """Add the pairs that reach the floor to the pool."""
        bounds = block.bounds
        places_M, queries_M, values_M = reaching(block.product_BQ, block.peaks_GQ, self._limits(block))
        real_M = (places_M < len(block.rows_B)) & (queries_M < len(self._floor_Q))
        if not real_M.all():
            places_M, queries_M, values_M = places_M[real_M], queries_M[real_M], values_M[real_M]
        middle_M = values_M * bounds.unit_Q[queries_M]
        error_M = bounds.of(places_M, queries_M) + np.abs(middle_M) * (4.0 * ROUNDING)
        self._pools.append(_Pool(queries_M, block.rows_B[places_M], middle_M - error_M, middle_M + error_M))
        self._size += len(places_M)
        self._seen += len(block.rows_B)
        if self._seen >= self._score_at:
            self._score_best()
            self._score_at = 4 * self._seen
        elif self._size > self._enough:
            self._tighten()
            self._enough = 2 * max(_FEW, self._size)

    @property
    def _pool(self) -> _Pool:
        if len(self._pools) > 1:
            self._pools = [_Pool.joined(self._pools)]
        return self._pools[0]

    def _limits(self, block: _Block) -> Doubles:
        """What the product must reach, at least, for the upper bound to reach the floor."""
        limits_Q = np.full(block.product_BQ.shape[1], np.inf)
        asked_Q = (self._floor_Q - block.bounds.worst_Q) / block.bounds.unit_Q
        limits_Q[: len(asked_Q)] = asked_Q - np.abs(asked_Q) * (16.0 * ROUNDING)
        return limits_Q

    def _tighten(self) -> None:
        """Raise the floors to the k-th best lower bounds, and drop what stays under them."""
        pool = self._pool
        keys_M = np.sort(_keys(pool.queries_M, pool.lower_M))
        ends_Q = self._ends(keys_M)
        full_Q = np.diff(ends_Q, prepend=0) >= self._k
        self._floor_Q[full_Q] = np.maximum(self._floor_Q[full_Q], _values(keys_M[ends_Q[full_Q] - self._k]))
        self._pools = [pool.where(pool.upper_M >= self._floor_Q[pool.queries_M])]
        if len(self._pool) > max(_MANY, 4 * self._k * len(self._floor_Q)):
            # Too many too close together, such as copies of one row: settled now, so that the pool stays small.
            self._score(np.arange(len(self._pool)))
            self._pools = [self._pool.where(self._ranking())]
        self._size = len(self._pool)

    def _score_best(self) -> None:
        """Score the k that are probably best: k real scores are a higher floor than k lower bounds."""
        self._tighten()
        pool = self._pool
        keys_M = _keys(pool.queries_M, (pool.lower_M + pool.upper_M) / 2)
        order_M = keys_M.argsort()
        ends_Q = self._ends(keys_M[order_M])
        places_QK = ends_Q[:, None] - 1 - np.arange(self._k)
        inside_QK = places_QK >= np.concatenate([[0], ends_Q[:-1]])[:, None]
        self._score(order_M[places_QK[inside_QK]])
        self._tighten()

    def _ends(self, keys_M: Integers) -> Integers:
        """Where each query ends among sorted keys."""
        return np.searchsorted(keys_M, np.arange(1, len(self._floor_Q) + 1) << 32)

    def _score(self, chosen_M: Integers) -> None:
        """Score pairs of the pool as defined, unless they are."""
        pool = self._pool
        chosen_M = chosen_M[pool.lower_M[chosen_M] < pool.upper_M[chosen_M]]
        chosen_M = chosen_M[pool.rows_M[chosen_M].argsort(kind="stable")]  # a mapped file is read best in its order
        step = max(1, _WIDE // self._store.dim)
        for start in range(0, len(chosen_M), step):
            some = chosen_M[start : start + step]
            vectors_MD = self._store.gather(pool.rows_M[some])
            pool.lower_M[some] = scores_of(vectors_MD, self._queries_QD[pool.queries_M[some]])
        pool.upper_M[chosen_M] = pool.lower_M[chosen_M]
        self._rescored_Q += np.bincount(pool.queries_M[chosen_M], minlength=len(self._floor_Q))

    def _ranking(self) -> Integers:
        """The k best pairs of each query among those scored, best first, equal scores by row; query after query."""
        pool = self._pool
        order_M = np.lexsort((pool.rows_M, -pool.lower_M, pool.queries_M))
        queries_M = pool.queries_M[order_M]
        starts_Q = np.searchsorted(queries_M, np.arange(len(self._floor_Q)))
        place_M = np.arange(len(order_M)) - starts_Q[queries_M]
        ranked_M: Integers = order_M[place_M < self._k]
        return ranked_M


def _keys(queries_M: Integers, values_M: Doubles) -> Integers:
    """Integers that sort pairs by query, then by value (rounded down to float32): quicker than sorting twice."""
    bits_M = below(values_M).view(np.int32)
    ordered_M = bits_M ^ ((bits_M >> 31) & 0x7FFFFFFF)
    keys_M: Integers = (queries_M << 32) + ordered_M + (1 << 31)
    return keys_M


def _values(keys_M: Integers) -> Doubles:
    """The values inside such integers."""
    ordered_M = ((keys_M & 0xFFFFFFFF) - (1 << 31)).astype(np.int32)
    narrow_M = (ordered_M ^ ((ordered_M >> 31) & 0x7FFFFFFF)).view(np.float32)
    return narrow_M.astype(np.float64)


class Scan(Protocol):
    """Shows every row of a store to a shortlist, block by block."""

    def __call__(self, queries_QD: Queries, shortlist: Shortlist) -> None: ...


def search(store: VectorStore, queries_QD: Queries, k: int, scan: Scan, together: int) -> SearchResult:
    """The k best rows for each query (all of them when there are fewer), `together` queries in one scan."""
    queries_QD = check_queries(queries_QD, store.dim, k)
    shape = (len(queries_QD), min(k, len(store)))
    # A query of zeros scores 0 everywhere: the first rows are its best, and no bound could tell any apart.
    rows_QK = np.broadcast_to(np.arange(shape[1]), shape).copy()
    scores_QK, rescored_Q = np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.int64)
    asked = np.flatnonzero(queries_QD.any(axis=1))
    for start in range(0, len(asked), together):
        tile = asked[start : start + together]
        shortlist = Shortlist(store, queries_QD[tile], k)
        scan(queries_QD[tile], shortlist)
        rows_QK[tile], scores_QK[tile], rescored_Q[tile] = shortlist.found()
    return SearchResult(rows_QK, scores_QK, rescored_Q)
