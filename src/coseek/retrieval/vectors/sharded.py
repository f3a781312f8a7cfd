"""Sharded search: exact search over parts of a store, each on a device and in a thread, or a node, of its own.

Every part finds its own best rows, certified; the best of these are the best of the store. So the result is that of one
search over all rows, to the last id.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coseek.core.cluster import Cluster, check_same
from coseek.hardware.device import device_of
from coseek.retrieval.vectors.exact import BLOCK_ROWS, ExactSearch
from coseek.retrieval.vectors.shortlist import Queries, ScanSearch, SearchResult
from coseek.retrieval.vectors.store import Rows, VectorStore


class ShardedSearch:
    """Searches parts of a store at once. Parts are neighbouring rows, in order."""

    def __init__(self, parts: Sequence[tuple[int, ScanSearch]]) -> None:
        """`parts` are searches, each after the number of its first row."""
        self._parts = parts

    @classmethod
    def over(cls, store: VectorStore, devices: Sequence[str], block_rows: int = BLOCK_ROWS) -> "ShardedSearch":
        """Deal the rows to the devices in equal parts."""
        spans = zip(_spans(store, len(devices)), devices, strict=False)
        return cls([(first, ExactSearch(store.part(first, last), one, block_rows)) for (first, last), one in spans])

    def search(self, queries_QD: Queries, k: int) -> tuple[Rows, NDArray[np.float32]]:
        """See `ScanSearch.search`."""
        found = self.find(queries_QD, k)
        return found.rows_QK, found.scores_QK

    def find(self, queries_QD: Queries, k: int) -> SearchResult:
        """See `ScanSearch.find`."""
        with ThreadPoolExecutor(len(self._parts), "coseek-shard") as pool:
            found = list(pool.map(lambda part: part[1].find(queries_QD, k), self._parts))
        return merged([first for first, _ in self._parts], found, k)


class ClusterSearch:
    """Searches parts of a stored store, each on a node of a cluster that keeps it in memory."""

    def __init__(self, cluster: Cluster, store: VectorStore, device: str, block_rows: int = BLOCK_ROWS) -> None:
        assert store.folder is not None
        self._cluster = cluster
        self._spans = _spans(store, cluster.nodes)
        self._job = PartJob(store.folder.resolve(), store.fingerprint, device, block_rows)

    def search(self, queries_QD: Queries, k: int) -> tuple[Rows, NDArray[np.float32]]:
        """See `ScanSearch.search`."""
        found = self.find(queries_QD, k)
        return found.rows_QK, found.scores_QK

    def find(self, queries_QD: Queries, k: int) -> SearchResult:
        """See `ScanSearch.find`."""
        asked = [(span, queries_QD, k) for span in self._spans]
        found = [one for _, one in self._cluster.map(self._job, asked, ordered=True, pinned=True)]
        return merged([first for first, _ in self._spans], found, k)


@dataclass(frozen=True)
class PartJob:
    """Searches parts (first row, last row) of a store, in a process of a cluster."""

    folder: Path
    fingerprint: str
    device: str
    """That of the settings: `auto` is a node's own choice."""
    block_rows: int

    def open(self) -> Callable[[tuple[tuple[int, int], Queries, int]], SearchResult]:
        store = VectorStore.open(self.folder)
        check_same(store.fingerprint, self.fingerprint, f"the store {self.folder}")

        @cache
        def part(span: tuple[int, int]) -> ExactSearch:
            return ExactSearch(store.part(*span), str(device_of(self.device)), self.block_rows)

        return lambda asked: part(asked[0]).find(asked[1], asked[2])


def _spans(store: VectorStore, parts: int) -> list[tuple[int, int]]:
    """First and last rows of equal parts."""
    borders: list[int] = np.linspace(0, len(store), min(parts, len(store)) + 1).astype(int).tolist()
    return list(pairwise(borders))


def merged(firsts: Sequence[int], found: Sequence[SearchResult], k: int) -> SearchResult:
    """The best of the best rows of each part, whose first row is given."""
    rows_QM = np.concatenate([part.rows_QK + first for first, part in zip(firsts, found, strict=True)], axis=1)
    ranking_QM = np.concatenate([part.ranking_QK for part in found], axis=1)
    best_QK = np.lexsort((rows_QM, -ranking_QM), axis=1)[:, :k]
    scores_QM = np.concatenate([part.scores_QK for part in found], axis=1)
    rows_QK, scores_QK, ranking_QK = (
        np.take_along_axis(one, best_QK, axis=1) for one in (rows_QM, scores_QM, ranking_QM)
    )
    return SearchResult(rows_QK, scores_QK, np.sum([part.rescored_Q for part in found], axis=0), ranking_QK)
