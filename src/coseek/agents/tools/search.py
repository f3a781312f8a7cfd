"""Search: runs the queries of a call in one batch over the rollout's retriever. The hits are the evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from pydantic import Field

from coseek.agents.tag import texts_of
from coseek.agents.tool import ParsedCall, ToolContext, ToolRequest, ToolSettings, TurnSearches
from coseek.core.errors import RetrieverError
from coseek.core.files import JsonObject
from coseek.data.trajectory import Search
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import fault_of_hits, search_each


class SearchSettings(ToolSettings):
    """Settings of `search`."""

    query: str = "query"
    """The argument that holds the query, or a list of queries."""
    max_queries: int | None = Field(default=None, ge=1)
    """Maximum number of queries per call. Further queries are dropped and make the trajectory invalid."""


SETTINGS = SearchSettings


def schema(settings: SearchSettings) -> JsonObject:
    """A query, or a list of queries if a call may have several."""
    query: JsonObject = {"type": "string", "description": "what to look for"}
    if settings.max_queries is not None and settings.max_queries > 1:
        query = {"type": "array", "items": query, "minItems": 1, "maxItems": settings.max_queries}
    return {
        "description": "Search a collection of documents and return the passages that fit best.",
        "parameters": {"type": "object", "properties": {settings.query: query}, "required": [settings.query]},
    }


def parse(arguments: JsonObject, settings: SearchSettings) -> ParsedCall:
    """The non-empty queries of a call in the order written."""
    queries, max_queries = texts_of(arguments.get(settings.query)), settings.max_queries
    if not queries:
        return ParsedCall(problem=f"a search needs {settings.query!r}, a text or a list of texts")
    too_many = max_queries is not None and len(queries) > max_queries
    problem = f"{len(queries)} queries in one call, and at most {max_queries} are allowed" if too_many else ""
    return ParsedCall(arguments_for(queries[:max_queries]), problem)


def arguments_for(queries: Sequence[str]) -> JsonObject:
    """The arguments of a search in the form that `run` takes."""
    return {"queries": [*queries]}


def run(requests: Sequence[ToolRequest], settings: SearchSettings, context: ToolContext) -> list[TurnSearches]:
    """Search the queries of all requests in one batch per top-k: the opening search may have another top-k."""
    queries = [
        tuple(replace(request.query, text=text) for text in cast(list[str], request.arguments["queries"]))
        for request in requests
    ]
    depths = [context.limits.passages_of(request.turn) for request in requests]
    searches: dict[int, Iterator[Search]] = {}
    for k in dict.fromkeys(depths):
        batch = [query for group, depth in zip(queries, depths, strict=True) if depth == k for query in group]
        searches[k] = iter(_search(batch, k, context))
    return [
        TurnSearches(group, tuple(replace(next(searches[k]), turn=request.turn) for _ in group))
        for request, group, k in zip(requests, queries, depths, strict=True)
    ]


def render(result: TurnSearches, settings: SearchSettings, context: ToolContext) -> tuple[int, ...]:
    """The documents found, each once, and a notice for each failed query."""
    limits = context.limits
    return context.template.block_ids(
        context.tokenizer, result.searches, limits.max_observation_tokens, limits.max_document_tokens, result.before
    )


def _search(queries: Sequence[Query], k: int, context: ToolContext) -> list[Search]:
    """Search all queries. A failed query, or hits that cannot be stored in a file, are a fault of that search."""
    searches: list[Search] = []
    for query, hits in zip(queries, search_each(context.retriever, queries, k), strict=True):
        if isinstance(hits, RetrieverError):
            searches.append(Search(query.text, fault=str(hits)))
        elif fault := fault_of_hits(hits):
            searches.append(Search(query.text, fault=fault))
        else:
            searches.append(Search(query.text, tuple(hits)))
    return searches
