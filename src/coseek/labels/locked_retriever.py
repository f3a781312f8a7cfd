"""Locked retriever: one search at a time, for label makers that search from several threads."""

import threading
from collections.abc import Sequence

from coseek.data.passage import Hit
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import LayeredRetriever, Retriever


class LockedRetriever(LayeredRetriever):
    """The other retriever under its own name and identity."""

    def __init__(self, over: Retriever, lock: threading.Lock) -> None:
        super().__init__(over)
        self._lock = lock

    @property
    def name(self) -> str:
        return self.over.name

    @property
    def identity(self) -> str:
        return self.over.identity

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        with self._lock:
            return self.over.search(queries, k)
