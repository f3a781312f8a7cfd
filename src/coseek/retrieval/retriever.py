"""Retriever: the one border that everything which finds passages stands behind."""

from collections.abc import Sequence
from typing import Protocol

from coseek.data.passage import Corpus, Hit


class Retriever(Protocol):
    """Turns queries into ranked passages.

    `search` takes Q queries and returns Q lists in input order, each of at most `k` hits with falling scores; equal
    scores keep corpus order. It may return fewer than `k`. The same queries give the same lists, whatever else is in
    the batch. A search that cannot happen raises `RetrieverError`.
    """

    name: str
    corpus: Corpus

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]: ...


class FixedRetriever:
    """A retriever that knows its results in advance: the seam for tests and examples."""

    name = "fixed"

    def __init__(self, corpus: Corpus, results: dict[str, list[str]]) -> None:
        self.corpus = corpus
        self._results = results

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The passages listed for exactly this query, scored k, k-1, …"""
        found = [self._results.get(query, [])[:k] for query in queries]
        return [
            [Hit(self.corpus.by_id(ident), float(k - rank)) for rank, ident in enumerate(idents)] for idents in found
        ]
