"""Shortlist: selects the exact k best rows from approximate scores with error bounds.

The score of a row is the inner product with the query in float64 (`scores_of`). A search computes a faster
approximation with a proven error bound, so that every row has a lower and an upper bound. A row whose upper bound is
below k lower bounds is discarded; the rest is scored in float64 and ranked, ties by row. The result depends on neither
blocks nor batches nor the machine.

    Q queries · B rows of a block · M (row, query) pairs · K hits
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.retrieval.vectors.store import Floats, Rows, VectorStore

if TYPE_CHECKING:
    import torch


# Block scores: matrices of approximate scores, and the entries in them that reach a threshold.
#
# A product has a row per vector of a block (B, a multiple of GROUP) and a column per query (Q). Rows are scanned in
# groups: the members of a group are read only if the group's maximum (its peak) reaches the threshold, which is rare.

Doubles: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int32]
Product: TypeAlias = "torch.Tensor"

GROUP = 16
"""Rows per group."""


def peaks_of(product_BQ: Product) -> Product:
    """The maximum of every group of rows."""
    return product_BQ.view(-1, GROUP, product_BQ.shape[1]).amax(dim=1)


def reaching(product_BQ: Product, peaks_GQ: Product, limits_Q: Doubles) -> tuple[Integers, Integers, Doubles]:
    """The (rows, queries, values) of the product where it reaches the thresholds `limits_Q`."""
    if product_BQ.device.type != "cpu":
        return reaching_on_device(product_BQ, peaks_GQ, limits_Q)
    product: Numbers = product_BQ.numpy()
    thresholds_Q = _cast_limits(product.dtype, limits_Q)
    groups_M, queries_M = np.nonzero(peaks_GQ.numpy() >= thresholds_Q)
    members_MG = product.reshape(-1, GROUP, product.shape[1])[groups_M, :, queries_M]
    hot_M, member_M = np.nonzero(members_MG >= thresholds_Q[queries_M, None])
    values_M = members_MG[hot_M, member_M]
    return groups_M[hot_M] * GROUP + member_M, queries_M[hot_M], values_M.astype(np.float64)


def reaching_on_device(product_BQ: Product, peaks_GQ: Product, limits_Q: Doubles) -> tuple[Integers, Integers, Doubles]:
    """`reaching` on the product's device; only the resulting entries are copied to the CPU."""
    thresholds_Q = product_BQ.new_tensor(_cast_limits(np.dtype(np.float32), limits_Q))
    groups_M, queries_M = (peaks_GQ >= thresholds_Q).nonzero(as_tuple=True)
    members_MG = product_BQ.view(-1, GROUP, product_BQ.shape[1])[groups_M, :, queries_M]
    hot_M, member_M = (members_MG >= thresholds_Q[queries_M, None]).nonzero(as_tuple=True)
    entries = (groups_M[hot_M] * GROUP + member_M, queries_M[hot_M], members_MG[hot_M, member_M].double())
    rows, queries, values = (tensor.cpu().numpy() for tensor in entries)
    return rows, queries, values


def _cast_limits(kind: "np.dtype[np.generic]", limits_Q: Doubles) -> Numbers:
    """The thresholds in the product's number type, rounded down."""
    if kind.kind == "i":
        return np.floor(limits_Q).clip(-(2.0**31), 2.0**31 - 1).astype(np.int32)
    if kind == np.float64:
        return limits_Q
    return below(limits_Q)


def below(values: Doubles) -> NDArray[np.float32]:
    """Round down to float32. Values below its range become −inf, values above it the largest float32."""
    largest = float(np.finfo(np.float32).max)
    narrow = values.clip(-largest, largest).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where((narrow > values) | (values < -largest), np.nextafter(narrow, np.float32(-np.inf)), narrow)


Queries: TypeAlias = NDArray[np.float32]
ROUNDING = 2.0**-53
"""Unit roundoff of float64."""
_SLACK = 1.0 + 2.0**-40
"""Covers the rounding of the bounds themselves, a few float64 operations."""
_FIRST_ROWS = 1 << 16
"""Rows whose products are buffered until the first floor: 16 MB with 64 queries."""
_FEW, _MANY = 1 << 13, 1 << 20
"""The number of pairs at which the pool is pruned, and at which (40 MB) its pairs are scored."""
_WIDE = 1 << 18
"""Numbers multiplied per call when pairs are scored: 2 MB of float64, which fits the cache."""


def scores_of(vectors_MD: Floats, queries_MD: Queries) -> Doubles:
    """The score of each pair: the float64 sum of products, with numpy's pairwise summation along the row. Products of
    float32 numbers are exact in float64; the error of the sum is below D · 2⁻⁵³ · ‖x‖‖q‖."""
    scores_M: Doubles = np.multiply(vectors_MD, queries_MD, dtype=np.float64, order="C").sum(axis=1)
    return scores_M


def score_error(dim: int) -> float:
    """Error bound of `scores_of`, as a factor of ‖x‖‖q‖ (twice the theoretical bound)."""
    return 2.0 * dim * ROUNDING


@dataclass(frozen=True, slots=True)
class Bounds:
    """Error bounds of a block: |score − unit · product| ≤ coarse · whole + fine · rest."""

    unit_Q: Doubles
    coarse_B: Doubles
    whole_Q: Doubles
    fine_B: Doubles
    rest_Q: Doubles

    def of(self, rows_M: Integers, queries_M: Integers) -> Doubles:
        """The bounds of (row of the block, query) pairs."""
        bounds_M = self.coarse_B[rows_M] * self.whole_Q[queries_M] + self.fine_B[rows_M] * self.rest_Q[queries_M]
        return bounds_M * _SLACK

    @property
    def worst_Q(self) -> Doubles:
        """The bound for any row of the block."""
        worst_Q: Doubles = (self.coarse_B.max() * self.whole_Q + self.fine_B.max() * self.rest_Q) * _SLACK
        return worst_Q


class _Pool(NamedTuple):
    """The pairs that may still be among the best."""

    queries_M: Integers
    rows_M: Rows
    lower_M: Doubles
    upper_M: Doubles
    """Equal to `lower_M` once the pair is scored."""

    @property
    def size(self) -> int:
        return len(self.rows_M)

    def where(self, keep_M: NDArray[np.bool_] | Integers) -> "_Pool":
        return _Pool(self.queries_M[keep_M], self.rows_M[keep_M], self.lower_M[keep_M], self.upper_M[keep_M])


@dataclass(frozen=True, slots=True)
class _Block:
    """The scan result of some rows."""

    product_BQ: Product
    peaks_GQ: Product
    rows_B: Rows
    bounds: Bounds


class Shortlist:
    """Collects the blocks of a scan, in any order, each row once; `best` returns the best rows."""

    def __init__(self, store: VectorStore, queries_QD: Queries, k: int) -> None:
        self._store = store
        self._queries_QD = queries_QD
        self._k = min(k, len(store))
        self._floor_Q = np.full(len(queries_QD), -np.inf)
        empty = np.zeros(0, dtype=np.int64)
        self._pools = [_Pool(empty, empty, np.zeros(0), np.zeros(0))]
        self._size, self._prune_at = 0, 2 * _FEW
        self._rows_seen, self._score_at = 0, _FIRST_ROWS
        self._buffer: list[_Block] = []
        self._has_floors = False

    def add_block(self, product_BQ: Product, rows_B: Rows, bounds: Bounds) -> None:
        """Add a block: `product_BQ` without NaN, padded to a multiple of GROUP rows."""
        peaks_GQ = peaks_of(product_BQ)
        if self._has_floors:
            self._filter(_Block(product_BQ, peaks_GQ, rows_B, bounds))
            return
        # The first blocks are buffered: floors from more rows let fewer pairs pass.
        self._buffer.append(_Block(product_BQ.clone(), peaks_GQ, rows_B, bounds))
        if sum(len(block.rows_B) for block in self._buffer) >= max(_FIRST_ROWS, 2 * GROUP * min(self._k, 8_192)):
            self._flush()

    def best(self) -> tuple[Rows, Doubles]:
        """The k best rows of every query, with their scores."""
        self._flush()
        self._score_best()
        self._score(np.arange(self._pool.size))
        best = self._pool.where(self._ranking())
        shape = (len(self._floor_Q), self._k)
        return best.rows_M.reshape(shape), best.lower_M.reshape(shape)

    def _flush(self) -> None:
        """Set the first floors from the peaks of the buffered blocks, then filter these blocks."""
        lowers_QG = np.concatenate([np.zeros((len(self._floor_Q), 0)), *map(self._peak_lowers, self._buffer)], axis=1)
        if lowers_QG.shape[1] >= self._k:
            self._floor_Q = np.partition(lowers_QG, -self._k, axis=1)[:, -self._k]
        self._has_floors = True
        for block in self._buffer:
            self._filter(block)
        self._buffer = []

    def _peak_lowers(self, block: _Block) -> Doubles:
        """Lower bounds of the best score in every group without padding."""
        peaks_GQ: Numbers = block.peaks_GQ.cpu().numpy()
        groups = len(block.rows_B) // GROUP
        middle_GQ = peaks_GQ[:groups, : len(self._floor_Q)] * block.bounds.unit_Q
        return (middle_GQ - np.abs(middle_GQ) * (4.0 * ROUNDING) - block.bounds.worst_Q).T

    def _filter(self, block: _Block) -> None:
        """Add the pairs that reach the floors to the pool."""
        bounds = block.bounds
        rows_M, queries_M, values_M = reaching(block.product_BQ, block.peaks_GQ, self._limits(block))
        real_M = (rows_M < len(block.rows_B)) & (queries_M < len(self._floor_Q))  # the others are padding
        if not real_M.all():
            rows_M, queries_M, values_M = rows_M[real_M], queries_M[real_M], values_M[real_M]
        middle_M = values_M * bounds.unit_Q[queries_M]
        error_M = bounds.of(rows_M, queries_M) + np.abs(middle_M) * (4.0 * ROUNDING)
        self._pools.append(_Pool(queries_M, block.rows_B[rows_M], middle_M - error_M, middle_M + error_M))
        self._size += len(rows_M)
        self._rows_seen += len(block.rows_B)
        if self._rows_seen >= self._score_at:
            self._score_best()
            self._score_at = 4 * self._rows_seen
        elif self._size > self._prune_at:
            self._prune()
            self._prune_at = 2 * max(_FEW, self._size)

    @property
    def _pool(self) -> _Pool:
        if len(self._pools) > 1:
            self._pools = [_Pool(*map(np.concatenate, zip(*self._pools, strict=True)))]
        return self._pools[0]

    def _limits(self, block: _Block) -> Doubles:
        """The threshold of the product from which the upper bound may reach the floor."""
        limits_Q = np.full(block.product_BQ.shape[1], np.inf)
        needed_Q = (self._floor_Q - block.bounds.worst_Q) / block.bounds.unit_Q
        limits_Q[: len(needed_Q)] = needed_Q - np.abs(needed_Q) * (16.0 * ROUNDING)
        return limits_Q

    def _prune(self) -> None:
        """Raise the floors to the k-th best lower bounds and drop the pairs below them."""
        pool = self._pool
        keys_M = np.sort(_keys(pool.queries_M, pool.lower_M))
        ends_Q = self._ends(keys_M)
        full_Q = np.diff(ends_Q, prepend=0) >= self._k
        self._floor_Q[full_Q] = np.maximum(self._floor_Q[full_Q], _values(keys_M[ends_Q[full_Q] - self._k]))
        self._pools = [pool.where(pool.upper_M >= self._floor_Q[pool.queries_M])]
        if self._pool.size > max(_MANY, 4 * self._k * len(self._floor_Q)):
            # Many near ties, such as copies of one row: score them now to keep the pool small.
            self._score(np.arange(self._pool.size))
            self._pools = [self._pool.where(self._ranking())]
        self._size = self._pool.size

    def _score_best(self) -> None:
        """Score the k pairs that are probably best, since their scores are a higher floor than lower bounds."""
        self._prune()
        pool = self._pool
        keys_M = _keys(pool.queries_M, (pool.lower_M + pool.upper_M) / 2)
        order_M = keys_M.argsort()
        ends_Q = self._ends(keys_M[order_M])
        best_QK = ends_Q[:, None] - 1 - np.arange(self._k)
        exists_QK = best_QK >= np.concatenate([[0], ends_Q[:-1]])[:, None]
        self._score(order_M[best_QK[exists_QK]])
        self._prune()

    def _ends(self, keys_M: Integers) -> Integers:
        """The end of each query's range in sorted keys."""
        return np.searchsorted(keys_M, np.arange(1, len(self._floor_Q) + 1) << 32)

    def _score(self, chosen_M: Integers) -> None:
        """Score pairs of the pool that are not scored yet."""
        pool = self._pool
        chosen_M = chosen_M[pool.lower_M[chosen_M] < pool.upper_M[chosen_M]]
        chosen_M = chosen_M[pool.rows_M[chosen_M].argsort(kind="stable")]  # sequential reads of a mapped file
        step = max(1, _WIDE // self._store.dim)
        for start in range(0, len(chosen_M), step):
            batch = chosen_M[start : start + step]
            vectors_MD = self._store.gather(pool.rows_M[batch])
            pool.lower_M[batch] = scores_of(vectors_MD, self._queries_QD[pool.queries_M[batch]])
        pool.upper_M[chosen_M] = pool.lower_M[chosen_M]

    def _ranking(self) -> Integers:
        """The k best scored pairs of each query, best first, ties by row; query after query."""
        pool = self._pool
        order_M = np.lexsort((pool.rows_M, -pool.lower_M, pool.queries_M))
        queries_M = pool.queries_M[order_M]
        starts_Q = np.searchsorted(queries_M, np.arange(len(self._floor_Q)))
        ranks_M = np.arange(len(order_M)) - starts_Q[queries_M]
        ranked_M: Integers = order_M[ranks_M < self._k]
        return ranked_M


def _keys(queries_M: Integers, values_M: Doubles) -> Integers:
    """Integer keys that sort pairs by query, then by value rounded down to float32; faster than two sorts."""
    bits_M = below(values_M).view(np.int32)
    ordered_M = bits_M ^ ((bits_M >> 31) & 0x7FFFFFFF)
    keys_M: Integers = (queries_M << 32) + ordered_M + (1 << 31)
    return keys_M


def _values(keys_M: Integers) -> Doubles:
    """The values encoded in such keys."""
    ordered_M = ((keys_M & 0xFFFFFFFF) - (1 << 31)).astype(np.int32)
    narrow_M = (ordered_M ^ ((ordered_M >> 31) & 0x7FFFFFFF)).view(np.float32)
    return narrow_M.astype(np.float64)


class VectorSearch(ABC):
    """Base of exact searches over a vector store."""

    def search(self, queries_QD: Queries, k: int) -> tuple[Rows, NDArray[np.float32]]:
        """`(rows_QK, scores_QK)`, best first, ties by row; K is k, or N if the store has fewer rows."""
        rows_QK, scores_QK = self.find(queries_QD, k)
        largest = float(np.finfo(np.float32).max)
        return rows_QK, scores_QK.clip(-largest, largest).astype(np.float32)

    @abstractmethod
    def find(self, queries_QD: Queries, k: int) -> tuple[Rows, Doubles]:
        """`search`, with the float64 scores, by which shards of a store are merged."""


class ScanSearch(VectorSearch):
    """Base of exact searches that scan a store and rank with a shortlist."""

    def __init__(self, store: VectorStore, queries_per_tile: int, tiles: int = 1) -> None:
        """A tile of queries shares one product. `tiles` of them share one pass over the store."""
        self._store, self._queries_per_tile, self._tiles = store, queries_per_tile, tiles

    @abstractmethod
    def _scan(self, tiles: "Sequence[tuple[Queries, Shortlist]]") -> None:
        """Pass every row of the store to the shortlist of every tile, block by block."""

    def find(self, queries_QD: Queries, k: int) -> tuple[Rows, Doubles]:
        """See `VectorSearch.find`."""
        store, size = self._store, self._queries_per_tile
        shape = (len(queries_QD), min(k, len(store)))
        # A zero query scores 0 on every row, so its result is the first rows; no bound could separate them.
        rows_QK, scores_QK = np.broadcast_to(np.arange(shape[1]), shape).copy(), np.zeros(shape)
        nonzero = np.flatnonzero(queries_QD.any(axis=1))
        tile_rows = [nonzero[start : start + size] for start in range(0, len(nonzero), size)]
        for first in range(0, len(tile_rows), self._tiles):
            group = tile_rows[first : first + self._tiles]
            tiles = [(queries_QD[rows], Shortlist(store, queries_QD[rows], k)) for rows in group]
            self._scan(tiles)
            for rows, (_, shortlist) in zip(group, tiles, strict=True):
                rows_QK[rows], scores_QK[rows] = shortlist.best()
        return rows_QK, scores_QK
