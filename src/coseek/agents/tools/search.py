"""Search: the queries of a call, given to the rollout's retriever in one batch. What they find is the evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from pydantic import Field

from coseek.agents.actions import texts_of
from coseek.agents.tool import ParsedCall, ToolContext, ToolRequest, ToolSettings, TurnSearches
from coseek.core.errors import RetrieverError
from coseek.core.files import JsonObject
from coseek.data.passage import Hit
from coseek.data.trajectory import Search
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import fault_of_hits


class SearchSettings(ToolSettings):
    """Settings of `search`."""

    query: str = "query"
    """The argument that holds the query, or a list of queries."""
    max_queries: int | None = Field(default=None, ge=1)
    """Queries per call. Further ones are left out, and the trajectory is not of the valid form."""


SETTINGS = SearchSettings


def schema(settings: SearchSettings) -> JsonObject:
    """A query, or a list where a call may have several."""
    query: JsonObject = {"type": "string", "description": "what to look for"}
    if settings.max_queries is not None and settings.max_queries > 1:
        query = {"type": "array", "items": query, "minItems": 1, "maxItems": settings.max_queries}
    return {
        "description": "Search a collection of documents and return the passages that fit best.",
        "parameters": {"type": "object", "properties": {settings.query: query}, "required": [settings.query]},
    }


def parse(arguments: JsonObject, settings: SearchSettings) -> ParsedCall:
    """The queries of a call in the order written; none is empty."""
    queries, most = texts_of(arguments.get(settings.query)), settings.max_queries
    if not queries:
        return ParsedCall(problem=f"a search needs {settings.query!r}, a text or a list of texts")
    too_many = most is not None and len(queries) > most
    problem = f"{len(queries)} queries in one call, and at most {most} are allowed" if too_many else ""
    return ParsedCall(arguments_for(queries[:most]), problem)


def arguments_for(queries: Sequence[str]) -> JsonObject:
    """The arguments of a search as `run` takes them."""
    return {"queries": [*queries]}


def run(requests: Sequence[ToolRequest], settings: SearchSettings, context: ToolContext) -> list[TurnSearches]:
    """Search the queries of all requests, in one batch for each top-k: that of the opening search may be another."""
    asked = [
        tuple(replace(request.query, text=text) for text in cast(list[str], request.arguments["queries"]))
        for request in requests
    ]
    depths = [context.limits.passages_of(request.turn) for request in requests]
    hits: dict[int, Iterator[Search]] = {}
    for k in dict.fromkeys(depths):
        batch = [query for queries, depth in zip(asked, depths, strict=True) if depth == k for query in queries]
        hits[k] = iter(_search(batch, k, context))
    return [
        TurnSearches(queries, tuple(replace(next(hits[k]), turn=request.turn) for _ in queries))
        for request, queries, k in zip(requests, asked, depths, strict=True)
    ]


def render(result: TurnSearches, settings: SearchSettings, context: ToolContext) -> tuple[int, ...]:
    """The documents found, each once, and a failure notice for each query that failed."""
    limits = context.limits
    return context.template.block_ids(
        context.tokenizer, result.searches, limits.max_observation_tokens, limits.max_document_tokens, result.before
    )


def _search(queries: Sequence[Query], k: int, context: ToolContext) -> list[Search]:
    """Search in one batch; when that fails, one by one, so a bad query costs no other its result."""
    try:
        hits = context.retriever.search(queries, k)
        return [checked_search(query.text, query_hits) for query, query_hits in zip(queries, hits, strict=True)]
    except RetrieverError as error:
        if len(queries) == 1:
            return [Search(queries[0].text, fault=str(error))]
        return [search for query in queries for search in _search([query], k, context)]


def checked_search(query: str, hits: Sequence[Hit]) -> Search:
    """Build a search from its hits; a retriever fault when they cannot be written to a file."""
    fault = fault_of_hits(hits)
    return Search(query, fault=fault) if fault else Search(query, tuple(hits))
