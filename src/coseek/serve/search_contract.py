"""Search contract: requests to `/retrieve` and their answers, as JSON. Knows neither HTTP nor any index.

A request is `{"queries": [str, …], "topk": int | null, "return_scores": bool}`; docs/reference/service.md has every
dialect.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, cast

from pydantic import BaseModel, Field, ValidationError

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import mistakes
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Hit
from coseek.retrieval.query import Query, QueryLike
from coseek.serve.limits import RefusedRequest
from coseek.serve.settings import ServeSettings

_QUOTED = 200
"""Characters of a refused value that a message quotes, at most."""


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """A parsed request."""

    queries: tuple[QueryLike, ...]
    topk: int | None
    """`None` leaves it to the server."""
    scores: bool
    """Whether each document comes with its score."""
    flat: bool = False
    """Whether the answer is the list of the only query: the dialect of `{"query": "one text"}` (QAgent's client)."""


class _Fields(BaseModel):
    """The fields of a request; others are passed over."""

    queries: list[str] | str | None = None
    query: list[str] | str | None = None
    topk: Annotated[int, Field(ge=0, le=10**9)] | None = None
    return_scores: bool | None = None
    contexts: list[dict[str, object] | None] | None = None


def parse_request(body: bytes, limits: ServeSettings) -> RetrieveRequest:
    """Read a request. Raises `RefusedRequest` with 400 (no JSON), 413 (too large) or 422 (not the contract)."""
    try:
        row = parse_lenient(body)
    except InvalidJson as error:
        raise RefusedRequest(400, f"the request cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise RefusedRequest(
            422, 'the request must be an object such as {"queries": ["…"], "topk": 3, "return_scores": true}'
        )
    try:
        given = _Fields.model_validate(row)
    except ValidationError as error:
        raise RefusedRequest(422, mistakes(error, None, row)[0][1]) from None
    asked = given.query if given.queries is None else given.queries
    if asked is None:
        raise RefusedRequest(422, 'the request needs "queries", a list of strings')
    texts = [asked] if isinstance(asked, str) else asked
    if len(texts) > limits.max_queries:
        raise RefusedRequest(
            413, f"{len(texts)} queries in one request, and at most {limits.max_queries} are taken; split it"
        )
    for number, text in enumerate(texts):
        if len(text) > limits.max_query_chars:
            raise RefusedRequest(
                413, f"query {number} has {len(text)} characters, and at most {limits.max_query_chars} are taken"
            )
    queries = tuple(_in_context(texts, given.contexts, limits))
    flat = given.queries is None and isinstance(asked, str)
    return RetrieveRequest(queries, given.topk, bool(given.return_scores), flat)


def passages_of(wish: RetrieveRequest, limits: ServeSettings, corpus: int | None) -> int:
    """The number of passages for each query, at most the size of the corpus where that is known. Raises
    `RefusedRequest` (422, 413) for more than `max_topk`, or more than `max_hits` in all."""
    k = wish.topk or limits.topk
    k = k if corpus is None else min(k, corpus)
    if k > limits.max_topk:
        raise RefusedRequest(
            422, f'"topk" is {wish.topk}, and at most {limits.max_topk} passages for each query are returned'
        )
    if (hits := k * len(wish.queries)) > limits.max_hits:
        raise RefusedRequest(
            413,
            f"{len(wish.queries)} queries with {k} passages each are {hits} passages in one answer, and at most "
            f"{limits.max_hits} are returned; split it",
        )
    return k


def blank(query: QueryLike) -> bool:
    """Whether the query's text is blank, whatever its context."""
    return not Query.of(query).text.strip()


def answer(lists: Sequence[Sequence[Hit]], wish: RetrieveRequest) -> bytes:
    """The body of an answer: one list for each query, in order, or the only list where the answer is flat. Raises
    `ValueError` for a score that is not finite."""
    found: list[Json] = []
    for hits in lists:
        rows: list[Json] = [document(hit) for hit in hits]
        if wish.scores:
            rows = [{"document": row, "score": float(hit.score)} for row, hit in zip(rows, hits, strict=True)]
        found.append(rows)
    # ASCII: escapes can hold the half surrogates of broken passages, which UTF-8 cannot.
    return json.dumps({"result": found[0] if wish.flat else found}, allow_nan=False, separators=(",", ":")).encode()


def document(hit: Hit) -> JsonObject:
    """A hit as JSON. All clients read `contents`; some read the other fields. `meta` is there where it is not empty."""
    passage = hit.passage
    row: JsonObject = {"id": passage.id, "contents": passage.contents, "title": passage.title, "text": passage.text}
    return {**row, "meta": dict(passage.meta)} if passage.meta else row


def _in_context(
    texts: Sequence[str], contexts: Sequence[Mapping[str, object] | None] | None, limits: ServeSettings
) -> Iterator[QueryLike]:
    """Queries with their contexts, where the client sends any."""
    if contexts is not None and len(contexts) != len(texts):
        raise RefusedRequest(422, f'"contexts" has {len(contexts)} items, and one for each of {len(texts)} is needed')
    for text, context in zip(texts, contexts or [None] * len(texts), strict=True):
        if not context:
            yield text
            continue
        try:
            query = Query.from_json(cast(JsonObject, {**context, "text": text}))
        except DataError as error:
            raise RefusedRequest(422, str(error)[:_QUOTED]) from None
        if query.context_chars > limits.max_context_chars:
            raise RefusedRequest(413, f"the context of a query has more than {limits.max_context_chars} characters")
        yield query
