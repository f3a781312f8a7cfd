"""Exact search: finds the k best rows of a vector store by scanning all rows in float32 blocks.

torch computes the products in float32, on a CPU or a GPU. Their rounding error has a proven bound; the shortlist
rescores in float64 the rows that the bound cannot rank.
"""

import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from coseek.core.cluster import Cluster, check_same
from coseek.hardware.device import device_of, memory_bytes
from coseek.hardware.placement import MIN_SPEEDUP, Choice, speedups
from coseek.retrieval.vectors.int8 import fits_int32, largest_query_code
from coseek.retrieval.vectors.shortlist import (
    GROUP,
    Bounds,
    Doubles,
    Product,
    Queries,
    ScanSearch,
    Shortlist,
    VectorSearch,
    score_error,
)
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore

BLOCK_ROWS = 65_536
"""Rows per product; with 64 queries the result takes 16 MB."""
_UNIT = 2.0**-24
"""Unit roundoff of float32."""
_REDUCED = 2.0**-7
"""Bound on the relative error of a product of two numbers rounded to bfloat16 (8 bits of precision)."""
_MAX_NORM = 1e37
"""Products of vectors with smaller norms cannot overflow float32."""
_STREAMED_TILES = 16
"""Tiles for which a block is sent to a device once; each needs its own shortlist."""


class ExactSearch(ScanSearch):
    """Scans every row in float32."""

    def __init__(
        self,
        store: VectorStore,
        device: str = "cpu",
        block_rows: int = BLOCK_ROWS,
        queries_per_tile: int = 64,
        tiles: int | None = None,
    ) -> None:
        """`device` is `cpu`, `cuda`, `cuda:1`, …; a GPU keeps as many blocks as fit into most of its free memory.

        A product has `block_rows` rows and `queries_per_tile` queries. `tiles` such products share one pass over the
        store, so that blocks that are not resident are sent once for all of them; by default 1, or 16 if some are not
        resident. No argument changes the result.
        """
        self._blocks = _Blocks(store, device, block_rows)
        super().__init__(store, queries_per_tile, tiles or (_STREAMED_TILES if self._blocks.streams else 1))
        self._block_rows = block_rows

    def _scan(self, tiles: Sequence[tuple[Queries, Shortlist]]) -> None:
        import torch

        scans = [_TileScan(queries_QD, shortlist, self._blocks) for queries_QD, shortlist in tiles]
        outputs: dict[tuple[int, int], Product] = {}
        for start, vectors_BD in self._store.blocks(self._block_rows):
            norms_B = self._store.norms_N[start : start + len(vectors_BD)]
            fits_float32 = float(norms_B.max()) * self._store.dim**0.5 < _MAX_NORM
            block_BD = self._blocks.on_device(start, vectors_BD) if fits_float32 else None
            for scan in scans:
                shape = (padded(len(vectors_BD)), len(scan.scaled_QD))
                if shape not in outputs:
                    outputs = {other: out for other, out in outputs.items() if other[0] == shape[0]}
                    outputs[shape] = torch.zeros(shape, dtype=torch.float32, device=self._blocks.device)
                if block_BD is None:
                    product_BQ = _wide_product(vectors_BD, scan.scaled_QD)
                else:
                    product_BQ = outputs[shape]
                    torch.mm(block_BD, scan.queries_DQ, out=product_BQ[: len(block_BD)])
                scan.add_block(product_BQ, np.arange(start, start + len(vectors_BD)), norms_B)


class _TileScan:
    """A tile of queries, prepared for products, with the error bounds of its scores."""

    def __init__(self, queries_QD: Queries, shortlist: Shortlist, blocks: "_Blocks") -> None:
        import torch

        dim = queries_QD.shape[1]
        self._shortlist = shortlist
        # Scaling by a power of two is exact and brings queries to about 1, so that only huge vectors can overflow.
        power_Q = np.frexp(np.abs(queries_QD).max(axis=1))[1]
        self.scaled_QD = np.ldexp(queries_QD, -power_Q[:, None]).astype(np.float32)
        self.queries_DQ = torch.from_numpy(self.scaled_QD.T.copy()).to(blocks.device)
        self._unit_Q = np.ldexp(1.0, power_Q)
        norms_Q = np.sqrt(np.square(queries_QD, dtype=np.float64).sum(axis=1))
        self._whole_Q = norms_Q * (product_error(dim) + blocks.factor_error + score_error(dim))
        # CPUs may flush numbers below 2⁻¹²⁶ to 0 in the vector, in a product and in a sum.
        self._rest_Q = self._unit_Q * (4.0 * dim * 2.0**-126)

    def add_block(self, product_BQ: Product, rows_B: Rows, norms_B: Doubles) -> None:
        """Pass a block's product to the shortlist."""
        bounds = Bounds(self._unit_Q, norms_B, self._whole_Q, np.ones(len(norms_B)), self._rest_Q)
        self._shortlist.add_block(product_BQ, rows_B, bounds)


class _Blocks:
    """The blocks of a store on a device, which keeps as many of them as fit."""

    def __init__(self, store: VectorStore, device: str, block_rows: int) -> None:
        import torch

        self.device = torch.device(device)
        self._resident_blocks: dict[int, torch.Tensor] = {}
        self.streams = False
        """Whether some blocks must be sent to the device for every pass."""
        if self.device.type == "cpu":
            return
        free_bytes = 0.8 * torch.accelerator.get_memory_info(self.device)[0]
        for start, vectors_BD in store.blocks(block_rows):
            free_bytes -= vectors_BD.nbytes
            if free_bytes < 0:
                self.streams = True
                return
            self._resident_blocks[start] = torch.from_numpy(vectors_BD).to(self.device)

    @property
    def factor_error(self) -> float:
        """Relative error of the factors of products, 0 for float32. TF32 or bfloat16 products, if the user enabled
        them, need a wider bound and give the same hits."""
        import torch

        backend = torch.backends.cuda if self.device.type == "cuda" else torch.backends.mkldnn
        return 0.0 if backend.matmul.fp32_precision in ("none", "ieee") else _REDUCED

    def on_device(self, start: int, vectors_BD: Floats) -> Product:
        """The block whose first row is `start`, in float32."""
        import torch

        resident_block = self._resident_blocks.get(start)
        return (torch.from_numpy(vectors_BD).to(self.device) if resident_block is None else resident_block).float()


def padded(rows: int) -> int:
    """Rows of a product, padded to whole groups."""
    return -(-rows // GROUP) * GROUP


def _wide_product(vectors_BD: Floats, queries_QD: Queries) -> Product:
    """The product in float64, for vectors whose float32 products may overflow."""
    import torch

    out_BQ = np.zeros((padded(len(vectors_BD)), len(queries_QD)))
    np.matmul(vectors_BD.astype(np.float64), queries_QD.T.astype(np.float64), out=out_BQ[: len(vectors_BD)])
    return torch.from_numpy(out_BQ)


def product_error(dim: int) -> float:
    """Error bound of a float32 product of D terms, as a factor of ‖x‖‖q‖: γ_D = D·u / (1 − D·u), in any order. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd edition, §3.1; Cauchy–Schwarz bounds Σ|x_i q_i|."""
    return dim * _UNIT / (1.0 - dim * _UNIT)


# Sharded search: exact search over shards of a store, each on its own device in a thread, or on its own node.
#
# Every shard returns its certified best rows; the best of these are the best of the store. So the result is that of one
# search over all rows, to the last id.


class ShardedSearch(VectorSearch):
    """Searches shards of a store concurrently. Shards are consecutive rows, in order."""

    def __init__(self, store: VectorStore, devices: Sequence[str], block_rows: int = BLOCK_ROWS) -> None:
        """Split the rows into equal shards, one per device."""
        self._spans = _spans(store, len(devices))
        self._searches = [
            ExactSearch(store.part(*span), device, block_rows)
            for span, device in zip(self._spans, devices, strict=False)
        ]

    def find(self, queries_QD: Queries, k: int) -> tuple[Rows, Doubles]:
        """See `VectorSearch.find`."""
        with ThreadPoolExecutor(len(self._searches), "coseek-shard") as pool:
            results = list(pool.map(lambda search: search.find(queries_QD, k), self._searches))
        return merge_shards(self._spans, results, k)


class ClusterSearch(VectorSearch):
    """Searches shards of a stored store, each on a node of a cluster that keeps it in memory."""

    def __init__(self, cluster: Cluster, store: VectorStore, device: str, block_rows: int = BLOCK_ROWS) -> None:
        assert store.folder is not None
        self._cluster = cluster
        self._spans = _spans(store, cluster.nodes)
        self._job = ShardJob(store.folder.resolve(), store.fingerprint, device, block_rows)

    def find(self, queries_QD: Queries, k: int) -> tuple[Rows, Doubles]:
        """See `VectorSearch.find`."""
        tasks = [(span, queries_QD, k) for span in self._spans]
        results = [result for _, result in self._cluster.map(self._job, tasks, ordered=True, pinned=True)]
        return merge_shards(self._spans, results, k)


@dataclass(frozen=True)
class ShardJob:
    """Searches shards (first row, last row) of a store, in a process of a cluster."""

    folder: Path
    fingerprint: str
    device: str
    """The device in the settings; each node resolves `auto`."""
    block_rows: int

    def open(self) -> Callable[[tuple[tuple[int, int], Queries, int]], tuple[Rows, Doubles]]:
        store = VectorStore.open(self.folder)
        check_same(store.fingerprint, self.fingerprint, f"the store {self.folder}")

        @cache
        def shard(span: tuple[int, int]) -> ExactSearch:
            return ExactSearch(store.part(*span), str(device_of(self.device)), self.block_rows)

        return lambda task: shard(task[0]).find(task[1], task[2])


def _spans(store: VectorStore, count: int) -> list[tuple[int, int]]:
    """First and last rows of `count` equal shards."""
    bounds: list[int] = np.linspace(0, len(store), min(count, len(store)) + 1).astype(int).tolist()
    return list(pairwise(bounds))


def merge_shards(
    spans: Sequence[tuple[int, int]], results: Sequence[tuple[Rows, Doubles]], k: int
) -> tuple[Rows, Doubles]:
    """Merge the best rows of shards."""
    rows_QM = np.concatenate([rows_QK + first for (first, _), (rows_QK, _) in zip(spans, results, strict=True)], axis=1)
    scores_QM = np.concatenate([scores_QK for _, scores_QK in results], axis=1)
    best_QK = np.lexsort((rows_QM, -scores_QM), axis=1)[:, :k]
    return np.take_along_axis(rows_QM, best_QK, axis=1), np.take_along_axis(scores_QM, best_QK, axis=1)


# Search method: selects the faster exact search over a store on this machine. All methods find the same rows.
#
# `exact` scans all rows in float32. `int8` scans a quantised copy first, a quarter of the bytes, and then verifies the
# result. Their relative speed depends on the CPU's instructions and on whether the vectors fit into memory.

SearchMethod: TypeAlias = Literal["exact", "int8"]

MIN_ROWS = 32_768
"""With fewer rows, a search takes milliseconds either way and needs no copy."""
MEMORY_SHARE = 0.8
"""Share of memory up to which vectors stay in the page cache."""


def fastest_method(store: VectorStore, device: str) -> Choice:
    """The method for a store, with the reason. `device` is the setting of an embedding retriever."""
    return choose_method(len(store), store.dim, store.dtype, device)


def choose_method(rows: int, dim: int, dtype: str, device: str) -> Choice:
    """The method for `rows` rows. Probes the machine only if the outcome matters."""
    if rows < MIN_ROWS:
        return Choice("exact", f"{rows:,} rows are few")
    if importlib.util.find_spec("torch") is None:
        return Choice("exact", "without torch there is no fast int8 product")
    if (target := device_of(device)).type != "cpu":
        return Choice("exact", f"on {target}, whose float32 is fast")
    if not (fits_int32(dim) and largest_query_code()):
        return Choice("exact", "there is no exact int8 product here")
    if (size := rows * dim * np.dtype(dtype).itemsize) > MEMORY_SHARE * memory_bytes():
        return Choice("int8", f"{size / 1e9:.0f} GB of vectors do not fit into memory beside the rest")
    if (speed := speedups()) is None:
        return Choice("exact", "the probe of this machine failed")
    # int8 must be clearly faster, since its copy takes disk space.
    method: SearchMethod = "int8" if speed.int8_search >= MIN_SPEEDUP else "exact"
    return Choice(method, f"a scan in int8 has {speed.int8_search:.2g} × the speed of one in float32")
