"""Search contract: requests to `/retrieve` and their answers, as JSON. Knows neither HTTP nor any index.

A request is `{"queries": [str, …], "topk": int | null, "return_scores": bool}`; docs/reference/service.md has every
dialect.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
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


def parse_request(body: bytes, limits: ServeSettings) -> RetrieveRequest:
    """Read a request. Raises `RefusedRequest` with 400 (no JSON), 413 (too large) or 422 (not the contract)."""
    row = _object(body)
    texts = _texts(row)
    if len(texts) > limits.max_queries:
        raise RefusedRequest(
            413, f"{len(texts)} queries in one request, and at most {limits.max_queries} are taken; split it"
        )
    for number, text in enumerate(texts):
        if len(text) > limits.max_query_chars:
            raise RefusedRequest(
                413, f"query {number} has {len(text)} characters, and at most {limits.max_query_chars} are taken"
            )
    scores = row.get("return_scores")
    if scores is not None and not isinstance(scores, bool):
        raise RefusedRequest(422, f'"return_scores" is true or false, not {_quoted(scores)}')
    queries = _in_context(texts, row.get("contexts"), limits)
    flat = row.get("queries") is None and isinstance(row.get("query"), str)
    return RetrieveRequest(tuple(queries), _topk(row.get("topk")), bool(scores), flat)


def passages_of(wanted: RetrieveRequest, limits: ServeSettings, corpus: int | None) -> int:
    """The number of passages for each query, at most the size of the corpus where that is known. Raises
    `RefusedRequest` (422, 413) for more than `max_topk`, or more than `max_hits` in all."""
    k = wanted.topk or limits.topk
    k = k if corpus is None else min(k, corpus)
    if k > limits.max_topk:
        raise RefusedRequest(
            422, f'"topk" is {_quoted(wanted.topk)}, and at most {limits.max_topk} passages for each query are returned'
        )
    if (hits := k * len(wanted.queries)) > limits.max_hits:
        raise RefusedRequest(
            413,
            f"{len(wanted.queries)} queries with {k} passages each are {hits} passages in one answer, and at most "
            f"{limits.max_hits} are returned; split it",
        )
    return k


def blank(query: QueryLike) -> bool:
    """Whether the query's text is blank, whatever its context."""
    return not Query.of(query).text.strip()


def answer(lists: Sequence[Sequence[Hit]], wanted: RetrieveRequest, max_bytes: int) -> bytes:
    """The body of an answer: one list for each query, in order, or the only list where the answer is flat. A score that
    is not finite raises `ValueError`, a longer body `RefusedRequest` (413)."""
    bodies: list[bytes] = []
    bytes_left = max_bytes
    for hits in lists:
        rows: list[JsonObject] = [document(hit) for hit in hits]
        if wanted.scores:
            rows = [{"document": row, "score": float(hit.score)} for row, hit in zip(rows, hits, strict=True)]
        # ASCII: escapes can hold the half surrogates of broken passages, which UTF-8 cannot.
        bodies.append(json.dumps(rows, allow_nan=False, separators=(",", ":")).encode())
        bytes_left -= len(bodies[-1])
        if bytes_left < 0:
            raise RefusedRequest(413, f"the answer has more than {max_bytes} bytes; split the request")
    if wanted.flat:
        return b"".join((b'{"result":', bodies[0], b"}"))
    separated = [piece for body in bodies for piece in (b",", body)][1:]
    return b"".join((b'{"result":[', *separated, b"]}"))


def document(hit: Hit) -> JsonObject:
    """A hit as JSON. All clients read `contents`; some read the other fields. `meta` is there where it is not empty."""
    passage = hit.passage
    row: JsonObject = {"id": passage.id, "contents": passage.contents, "title": passage.title, "text": passage.text}
    return {**row, "meta": dict(passage.meta)} if passage.meta else row


def _object(body: bytes) -> JsonObject:
    try:
        row = parse_lenient(body)
    except InvalidJson as error:
        raise RefusedRequest(400, f"the request cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise RefusedRequest(
            422, 'the request must be an object such as {"queries": ["…"], "topk": 3, "return_scores": true}'
        )
    return row


def _texts(row: JsonObject) -> list[str]:
    """`queries` or `query`, each a list or a single string. `query` as a string has a flat answer."""
    for name in ("queries", "query"):
        value = row.get(name)
        if value is None:
            continue
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list):
            raise RefusedRequest(422, f'"{name}" is a list of strings, not {_quoted(value)}')
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise RefusedRequest(422, f'"{name}" is a list of strings, and number {number} is {_quoted(text)}')
        return cast(list[str], texts)
    raise RefusedRequest(422, 'the request needs "queries", a list of strings')


def _topk(value: Json) -> int | None:
    """Parse `topk`. 0 means null, as in the servers that clients were written for."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedRequest(422, f'"topk" is a whole number or null, not {_quoted(value)}')
    if value < 0:
        raise RefusedRequest(
            422, f'"topk" counts passages and cannot be {_quoted(value)}; leave it out for the default'
        )
    return value or None


def _in_context(texts: Sequence[str], contexts: Json, limits: ServeSettings) -> list[QueryLike]:
    """Queries with their contexts, where the client sends any."""
    if contexts is None:
        return list(texts)
    if not isinstance(contexts, list) or len(contexts) != len(texts):
        length = f"{len(contexts)} items" if isinstance(contexts, list) else _quoted(contexts)
        raise RefusedRequest(
            422, f'"contexts" is a list of one object (or null) for each query: {len(texts)} here, not {length}'
        )
    return [_one_in_context(text, context, limits) for text, context in zip(texts, contexts, strict=True)]


def _one_in_context(text: str, context: Json, limits: ServeSettings) -> QueryLike:
    if context is None or context == {}:
        return text
    if not isinstance(context, dict):
        raise RefusedRequest(422, f'each of "contexts" is an object or null, not {_quoted(context)}')
    try:
        query = Query.from_json({**context, "text": text})
    except DataError as error:
        raise RefusedRequest(422, str(error)[:_QUOTED]) from None
    if query.context_chars > limits.max_context_chars:
        raise RefusedRequest(413, f"the context of a query has more than {limits.max_context_chars} characters")
    return query


def _quoted(value: object) -> str:
    """The value as a message shows it, shortened."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_QUOTED:
        return "a number of more than 200 digits"  # writing one out can take minutes, and Python refuses to
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
