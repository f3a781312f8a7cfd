"""Retriever: the interface of everything that finds passages."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from coseek.core.errors import RetrieverError
from coseek.core.fingerprint import digest_of
from coseek.core.strict_json import replace_surrogates
from coseek.data.passage import Corpus, Hit
from coseek.retrieval.query import EVERYTHING, ContextFields, Query, QueryLike, as_queries
from coseek.retrieval.views import find_view


class Retriever(Protocol):
    """Maps queries to ranked passages. `search` takes Q queries and returns Q lists in input order, each of at most `k`
    hits with descending scores; ties keep corpus order. The hits of a query do not depend on the rest of the batch. A
    failed search raises `RetrieverError`. A bare text is one query: see `as_queries`."""

    @property
    def name(self) -> str: ...

    @property
    def corpus(self) -> Corpus | None:
        """The corpus that is searched; `None` if it is remote or generated."""

    @property
    def identity(self) -> str:
        """A digest of everything besides the query and `k` that the hits depend on: corpus, settings, weights, view."""

    def seen(self, query: QueryLike) -> str:
        """The text that the retriever sees of a query. Queries with equal text get equal hits."""

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]: ...


@runtime_checkable
class ScheduledRetriever(Protocol):
    """A retriever that gets better or worse while an agent learns."""

    def progress(self, step: int, steps: int) -> None:
        """Training is at `step` of `steps`."""


def retriever_stack(retriever: Retriever) -> Iterator[Retriever]:
    """The retriever, then those that it searches: its optional attribute `under`, a tuple."""
    yield retriever
    under = getattr(retriever, "under", ())
    for layer in under if isinstance(under, tuple) else ():
        yield from retriever_stack(layer)


@dataclass(frozen=True, slots=True)
class SharedSchedule:
    """All retrievers of a stack that change during training. Implements `ScheduledRetriever`."""

    retrievers: Sequence[ScheduledRetriever]

    def progress(self, step: int, steps: int) -> None:
        for retriever in self.retrievers:
            retriever.progress(step, steps)


def schedule_of(retriever: Retriever) -> SharedSchedule | None:
    """The retrievers of a stack that change during training; `None` if none does."""
    scheduled = [layer for layer in retriever_stack(retriever) if isinstance(layer, ScheduledRetriever)]
    return SharedSchedule(scheduled) if scheduled else None


def tell_step(retriever: ScheduledRetriever, step: int, steps: int) -> None:
    """Set the progress of a retriever to step `step` of `steps`, from 1: the first step has the first noise rate, the
    last the last."""
    retriever.progress(step - 1, max(1, steps - 1))


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A count of what a retriever could not do, without a failure that its hits would show."""

    count: int
    total: int
    problem: str
    """Such as `orders could not be read`."""

    def __str__(self) -> str:
        return f"{self.count:,} of {self.total:,} {self.problem}"


def shortfalls_of(retriever: Retriever) -> list[Shortfall]:
    """The non-zero shortfalls of a retriever and of those that it searches, since they were opened: their optional
    attribute `shortfalls`, a tuple."""
    reported_groups = [getattr(layer, "shortfalls", ()) for layer in retriever_stack(retriever)]
    shortfalls = [shortfall for group in reported_groups if isinstance(group, tuple) for shortfall in group]
    return [shortfall for shortfall in shortfalls if isinstance(shortfall, Shortfall) and shortfall.count]


def fields_read(retriever: Retriever) -> ContextFields:
    """The context fields that the retriever reads: its optional attribute `reads`; all without one."""
    reads = getattr(retriever, "reads", None)
    return reads if isinstance(reads, ContextFields) else EVERYTHING


def absent_score(retriever: Retriever) -> float | None:
    """The score of a passage that is not among the hits: the retriever's optional attribute `absent_score`; `None` if
    unknown."""
    score = getattr(retriever, "absent_score", None)
    return score if isinstance(score, float) else None


def fault_of_hits(hits: Sequence[Hit]) -> str:
    """Why a list of hits cannot be stored (a score that is not finite, a lone surrogate); empty if it can."""
    for rank, hit in enumerate(hits, start=1):
        if not math.isfinite(hit.score):
            return f"the retriever gave hit {rank} the score {hit.score}, which is not finite"
        passage = hit.passage
        if any(replace_surrogates(text) != text for text in (passage.id, passage.title, passage.text)):
            return f"hit {rank} of the retriever holds a lone surrogate, which cannot be encoded"
    return ""


def search_each(retriever: Retriever, queries: Sequence[QueryLike], k: int) -> list[list[Hit] | RetrieverError]:
    """The hits of each query, or the error of its search. A batch that fails is halved, so that a failing query costs
    no other query its hits."""
    if not queries:
        return []
    try:
        return list(retriever.search(queries, k))
    except RetrieverError as error:
        if len(queries) == 1:
            return [error]
    middle = len(queries) // 2
    return search_each(retriever, queries[:middle], k) + search_each(retriever, queries[middle:], k)


class LayeredRetriever:
    """Base of a retriever over another one, with its corpus and view. Its `settings` may have a second view."""

    keeps_scores: ClassVar[bool] = False
    """Whether hits have the other retriever's scores, so that a hybrid weighs it like that one."""

    def __init__(self, over: Retriever) -> None:
        self.over = over

    @property
    def under(self) -> tuple[Retriever, ...]:
        return (self.over,)

    @property
    def corpus(self) -> Corpus | None:
        return self.over.corpus

    @property
    def absent_score(self) -> float | None:
        return absent_score(self.over) if self.keeps_scores else None

    @property
    def reads(self) -> ContextFields:
        view = getattr(getattr(self, "settings", None), "view", "query")
        return fields_read(self.over) | find_view(view).fields

    def seen(self, query: QueryLike) -> str:
        return self.over.seen(query)


class FixedRetriever:
    """A retriever with fixed results, for tests and examples."""

    name = "fixed"
    reads = ContextFields()

    def __init__(self, corpus: Corpus, results: dict[str, list[str]]) -> None:
        self.corpus = corpus
        self._results = results

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.corpus.digest, repr(sorted(self._results.items())))

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).text

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The passages listed for exactly this query, with scores k, k−1, …"""
        queries = as_queries(queries, k)
        ids_Q = [self._results.get(self.seen(query), [])[:k] for query in queries]
        return [[Hit(self.corpus.by_id(ident), float(k - rank)) for rank, ident in enumerate(ids)] for ids in ids_Q]
