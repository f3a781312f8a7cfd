"""Search service: named retrievers over HTTP. All paths respond with JSON; an error is `{"error": sentence}`.

A request to `/retrieve` is `{"queries": [str, …], "topk": int | null, "return_scores": bool}`;
docs/reference/service.md has every dialect.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeAlias, cast

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator, Field

from coseek import __version__
from coseek.core.errors import DataError, RetrieverError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, dump_settings
from coseek.data.passage import Hit
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retriever import Retriever, fields_read
from coseek.retrieval.retrievers.remote import IDENTITY
from coseek.serve.batching import Batcher
from coseek.serve.service import (
    RECORD,
    AccessMiddleware,
    App,
    RefusedRequest,
    RequestBody,
    Service,
    WorkThread,
    new_app,
    offload,
    parse_body,
    read_body,
    serve_app,
    token_of,
    until_disconnect,
)
from coseek.serve.settings import ServeSettings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of indexes, which are parts of URLs."""
TAKEN = frozenset({"retrieve", "info", "health"})
LIMITS = {"max_queries", "max_query_chars", "max_context_chars", "max_topk", "max_hits", "max_body_bytes"}
"""Settings that limit a request; listed by `/info`."""
_SECRET = frozenset({"token", "secret", "password", "key", "authorization"})
_QUOTED = 200
"""Maximum number of characters of a refused value in a message."""
_MANY_HITS = 2_000
"""Number of hits from which a response is serialised in a thread, so that other requests are not blocked."""


def serve(
    openers: Mapping[str, Callable[[], Retriever]], settings: ServeSettings, ready: Callable[[str], None]
) -> None:
    """Serve until a signal arrives. `ready` is called with the URL when everything is open. See `SearchService`."""
    token = token_of(settings)
    service = SearchService(openers, settings)
    serve_app(service, make_app(service, token), ready)


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """A parsed request."""

    queries: tuple[QueryLike, ...]
    topk: int | None
    """`None`: the server's default."""
    scores: bool
    """Whether each document is returned with its score."""
    flat: bool = False
    """Whether the response holds only the list of a single query: the dialect of `{"query": "one text"}` (QAgent's
    client)."""


@dataclass(frozen=True, slots=True)
class Index:
    """An open retriever."""

    retriever: Retriever
    passages: int | None
    """`None` for a remote corpus."""
    card: JsonObject
    """The index's part of the response of `/info`."""

    @classmethod
    def of(cls, name: str, retriever: Retriever) -> "Index":
        passages = None if retriever.corpus is None else len(retriever.corpus)
        settings = getattr(retriever, "settings", None)
        card: JsonObject = {
            "index": name,
            "name": retriever.name,
            "identity": retriever.identity,
            "view": str(getattr(settings, "view", "query")),
            "reads": fields_read(retriever).to_json(),
            "passages": passages,
            "settings": without_secrets(dump_settings(settings)) if isinstance(settings, Settings) else {},
        }
        return cls(retriever, passages, card)


class SearchService(Service):
    """Serves named retrievers, which are opened in the search thread."""

    settings: ServeSettings

    def __init__(self, openers: Mapping[str, Callable[[], Retriever]], settings: ServeSettings) -> None:
        """`openers` maps names to functions that open the retrievers. The first is the default."""
        for name in openers:
            check_name(name)
        self.names = tuple(openers)
        super().__init__(settings, WorkThread("coseek-search"), self.names[0])
        self.batcher = Batcher(self.thread, settings.batch, settings.queue, settings.most_wait_s)
        self.indexes: dict[str, Index] = {}
        self._openers = openers

    def index(self, name: str) -> Index:
        """An open index. Raises `RefusedRequest` (503) until all indexes are open."""
        self.check_ready()
        return self.indexes[name]

    def _counts(self) -> JsonObject:
        return {"waiting": self.batcher.waiting, "faults": self.batcher.faults}

    def info(self, name: str) -> JsonObject:
        """The card of an index, with the parts of a query's context that it reads, and the limits of a request."""
        limits = self.settings.model_dump(include=LIMITS)
        fields: JsonObject = {"topk": self.settings.topk, "limits": limits, "indexes": list(self.names)}
        return {**self.index(name).card, **fields, "coseek": __version__}

    def _open(self) -> None:
        for name, opener in self._openers.items():
            self.opening = name
            index = Index.of(name, opener())
            if index.passages is not None:  # a search of a remote retriever may cost money
                with suppress(RetrieverError):  # the first request reports it
                    index.retriever.search(["warm up"], 1)  # loads encoders before the first request
            self.indexes[name] = index


def make_app(service: SearchService, token: str | None = None) -> App:
    """The whole application. It opens and closes the service with its own lifespan."""
    app = new_app(service, lambda status, sentence, kind: {"error": sentence})
    _add_index(app, service, service.names[0], "")
    for name in service.names:
        _add_index(app, service, name, f"/{name}")

    @app.exception_handler(RetrieverError)
    async def fault(request: Request, error: RetrieverError) -> Response:
        return JSONResponse({"error": f"the retriever failed: {error}"}, 502)

    return AccessMiddleware(cast(App, app), token, service.settings.log)


def _add_index(app: FastAPI, service: SearchService, name: str, prefix: str) -> None:
    """Add the paths of one index."""

    @app.get(f"{prefix}/info")
    async def info() -> Response:
        return JSONResponse(service.info(name))

    @app.post(f"{prefix}/retrieve")
    async def retrieve(request: Request) -> Response:
        limits = service.settings
        record = cast(JsonObject, request.scope[RECORD])
        search_request = await read_body(request, limits, partial(parse_request, limits=limits))
        index = service.index(name)
        k = passages_of(search_request, limits, index.passages)
        record |= {"index": name, "queries": len(search_request.queries), "k": k}
        queries = [query for query in search_request.queries if not blank(query)]
        lists: list[list[Hit]] = []
        if queries:
            job = await until_disconnect(request, service.batcher.search(index.retriever, queries, k))
            record["queue_ms"] = round((job.began - job.arrived) * 1_000, 2)
            record |= {"engine_ms": round((job.ended - job.began) * 1_000, 2), "batch": job.batch}
            if job.fault is not None:
                raise job.fault
            lists = job.lists
        searched_lists = iter(lists)
        hits = [[] if blank(query) else next(searched_lists) for query in search_request.queries]
        is_long = sum(map(len, hits)) >= _MANY_HITS
        try:
            body = await offload(is_long, partial(answer, hits, search_request, limits.max_answer_bytes))
        except ValueError:
            raise RetrieverError("the retriever returned a score that is not a number") from None
        return Response(body, media_type="application/json", headers={IDENTITY: str(index.card["identity"])})


def check_name(name: str) -> None:
    """Raise `SettingError` for a name that cannot be part of a URL, or that is a path of the service."""
    if not NAME.fullmatch(name):
        raise SettingError(f"an index cannot be served as {name!r}; use letters, digits, '-', '_' and '.'")
    if name in TAKEN:
        raise SettingError(f"{name!r} is a path of the service itself; serve the index under another name")


def without_secrets(value: Json) -> Json:
    """Remove secrets from settings: values of a `key` or `token`, and the user, password and query of a URL."""
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items() if not _SECRET & set(key.lower().split("_"))}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if isinstance(value, str) and "://" in value:
        return re.split("[?#]", re.sub(r"(?<=://)[^/]*@", "", value))[0]
    return value


# Contract: requests to `/retrieve` and their responses, as JSON.


Texts: TypeAlias = str | Annotated[list[str], Field(fail_fast=True)]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class RetrieveBody(RequestBody):
    """The fields of a request to `/retrieve`."""

    queries: Texts | None = None
    query: Texts | None = None
    topk: Annotated[int | None, Field(ge=0), BeforeValidator(_whole)] = None
    return_scores: bool | None = None
    contexts: Annotated[list[dict[str, object] | None], Field(fail_fast=True)] | None = None


def parse_request(body: bytes, limits: ServeSettings) -> RetrieveRequest:
    """Parse a request. Raises `RefusedRequest` with 400 (invalid JSON), 413 (too large) or 422 (invalid request)."""
    fields = parse_body(body, RetrieveBody, 422, '{"queries": ["…"], "topk": 3, "return_scores": true}')
    given = fields.query if fields.queries is None else fields.queries
    if given is None:
        raise RefusedRequest(422, 'the request needs "queries", a list of strings')
    texts = [given] if isinstance(given, str) else given
    if len(texts) > limits.max_queries:
        raise RefusedRequest(
            413, f"{len(texts)} queries in one request, and at most {limits.max_queries} are taken; split it"
        )
    if (longest := max(map(len, texts), default=0)) > limits.max_query_chars:
        raise RefusedRequest(
            413, f"a query has {longest} characters, and at most {limits.max_query_chars} are taken; send less of it"
        )
    contexts = [None] * len(texts) if fields.contexts is None else fields.contexts
    if len(contexts) != len(texts):
        raise RefusedRequest(
            422, f'"contexts" has one object (or null) for each query: {len(texts)} here, not {len(contexts)}'
        )
    queries = [_with_context(text, context, limits) for text, context in zip(texts, contexts, strict=True)]
    flat = fields.queries is None and isinstance(given, str)
    return RetrieveRequest(tuple(queries), fields.topk or None, bool(fields.return_scores), flat)


def passages_of(wanted: RetrieveRequest, limits: ServeSettings, corpus: int | None) -> int:
    """The number of passages for each query, at most the size of the corpus, if known. Raises `RefusedRequest` (422,
    413) for more than `max_topk`, or more than `max_hits` in total."""
    k = wanted.topk or limits.topk
    k = k if corpus is None else min(k, corpus)
    if k > limits.max_topk:
        raise RefusedRequest(
            422, f'"topk" is too large: at most {limits.max_topk} passages for each query are returned'
        )
    if (hits := k * len(wanted.queries)) > limits.max_hits:
        raise RefusedRequest(
            413,
            f"{len(wanted.queries)} queries with {k} passages each are {hits} passages in one answer, and at most "
            f"{limits.max_hits} are returned; split it",
        )
    return k


def blank(query: QueryLike) -> bool:
    """Whether the query's text is blank. Its context does not count."""
    return not Query.of(query).text.strip()


def answer(lists: Sequence[Sequence[Hit]], wanted: RetrieveRequest, max_bytes: int) -> bytes:
    """The body of a response: one list for each query, in order, or the only list if the response is flat. A score that
    is not finite raises `ValueError`, a longer body `RefusedRequest` (413)."""
    rows: list[Json] = [[_row(hit, wanted.scores) for hit in hits] for hits in lists]
    # ASCII: escapes can hold the half surrogates of broken passages, which UTF-8 cannot.
    body = json.dumps({"result": rows[0] if wanted.flat else rows}, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > max_bytes:
        raise RefusedRequest(413, f"the answer has more than {max_bytes} bytes; split the request")
    return body


def _row(hit: Hit, with_score: bool) -> JsonObject:
    """A hit as JSON. All clients read `contents`; some read the other fields. An empty `meta` is left out."""
    passage = hit.passage
    row: JsonObject = {"id": passage.id, "contents": passage.contents, "title": passage.title, "text": passage.text}
    row |= {"meta": dict(passage.meta)} if passage.meta else {}
    return {"document": row, "score": float(hit.score)} if with_score else row


def _with_context(text: str, context: Mapping[str, object] | None, limits: ServeSettings) -> QueryLike:
    if context is None:
        return text
    try:
        query = Query.from_json({**cast(JsonObject, context), "text": text})
    except DataError as error:
        raise RefusedRequest(422, str(error)[:_QUOTED]) from None
    if query.context_chars > limits.max_context_chars:
        raise RefusedRequest(413, f"the context of a query has more than {limits.max_context_chars} characters")
    return query
