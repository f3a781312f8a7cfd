"""Sharded search: exact search over parts of a store, each on a device of its own and in a thread of its own.

Every part finds its own best rows, certified; the best of these are the best of the store. So the result is that of one
search over all rows, to the last id.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

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
        borders = np.linspace(0, len(store), min(len(devices), len(store)) + 1).astype(int).tolist()
        spans = zip(borders, borders[1:], devices, strict=False)
        return cls([(first, ExactSearch(store.part(first, last), one, block_rows)) for first, last, one in spans])

    def search(self, queries_QD: Queries, k: int) -> tuple[Rows, NDArray[np.float32]]:
        """See `ScanSearch.search`."""
        found = self.find(queries_QD, k)
        return found.rows_QK, found.scores_QK

    def find(self, queries_QD: Queries, k: int) -> SearchResult:
        """See `ScanSearch.find`."""
        with ThreadPoolExecutor(len(self._parts), "coseek-shard") as pool:
            found = list(pool.map(lambda part: part[1].find(queries_QD, k), self._parts))
        rows_QM = np.concatenate(
            [part.rows_QK + first for (first, _), part in zip(self._parts, found, strict=True)], axis=1
        )
        ranking_QM = np.concatenate([part.ranking_QK for part in found], axis=1)
        best_QK = np.lexsort((rows_QM, -ranking_QM), axis=1)[:, :k]
        scores_QM = np.concatenate([part.scores_QK for part in found], axis=1)
        rows_QK, scores_QK, ranking_QK = (
            np.take_along_axis(one, best_QK, axis=1) for one in (rows_QM, scores_QM, ranking_QM)
        )
        return SearchResult(rows_QK, scores_QK, np.sum([part.rescored_Q for part in found], axis=0), ranking_QK)
