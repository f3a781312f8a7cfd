"""Retriever: the one border that everything which finds passages stands behind."""

import math
from collections.abc import Sequence
from typing import Protocol

from coseek.core.fingerprint import digest_of
from coseek.core.strict_json import replace_surrogates
from coseek.data.passage import Corpus, Hit
from coseek.retrieval.query import Query, QueryLike, as_queries


class Retriever(Protocol):
    """Turns queries into ranked passages.

    `search` takes Q queries and returns Q lists in input order, each of at most `k` hits with falling scores; equal
    scores keep corpus order. It may return fewer than `k`. The same queries give the same lists, whatever else is in
    the batch. A search that cannot happen raises `RetrieverError`. A bare text is one query: see `as_queries`.
    """

    @property
    def name(self) -> str: ...

    @property
    def corpus(self) -> Corpus | None:
        """What is searched, where that is at hand; `None` for what is far away (HTTP, the web) or made up."""
        ...

    @property
    def identity(self) -> str:
        """A digest of all that the hits depend on besides the query and `k`: corpus, settings, weights, view."""
        ...

    def seen(self, query: QueryLike) -> str:
        """What it makes of a query through its view. Two queries of which it sees the same get the same hits."""
        ...

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]: ...


def fault_of_hits(hits: Sequence[Hit]) -> str:
    """Why a list of hits cannot be kept in any file; empty where it can. A retriever of a user's own may give anything:
    a score that is not finite, half of a surrogate pair."""
    for rank, hit in enumerate(hits, start=1):
        if not math.isfinite(hit.score):
            return f"the retriever gave hit {rank} the score {hit.score}, which is no finite number"
        passage = hit.passage
        if any(replace_surrogates(text) != text for text in (passage.id, passage.title, passage.text)):
            return f"hit {rank} of the retriever holds half of a surrogate pair, which is no text"
    return ""


class FixedRetriever:
    """A retriever that knows its results in advance: the seam for tests and examples."""

    name = "fixed"

    def __init__(self, corpus: Corpus, results: dict[str, list[str]]) -> None:
        self.corpus = corpus
        self._results = results

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.corpus.digest, repr(sorted(self._results.items())))

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).text

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The passages listed for exactly this query, scored k, k-1, …"""
        queries = as_queries(queries, k)
        found = [self._results.get(self.seen(query), [])[:k] for query in queries]
        return [
            [Hit(self.corpus.by_id(ident), float(k - rank)) for rank, ident in enumerate(idents)] for idents in found
        ]
