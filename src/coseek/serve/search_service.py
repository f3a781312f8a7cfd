"""Search service: named retrievers over HTTP. All paths answer with JSON; an error is `{"error": sentence}`."""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from coseek import __version__
from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, dump_settings
from coseek.data.passage import Hit
from coseek.retrieval.query import Query
from coseek.retrieval.responses import IDENTITY
from coseek.retrieval.retriever import Retriever, fields_read
from coseek.serve.batching import Batcher
from coseek.serve.limits import RECORD, AccessMiddleware, App, RefusedRequest, offload, read_body, until_disconnect
from coseek.serve.running import Service, WorkThread, new_app, serve_app, token_of
from coseek.serve.search_contract import (
    RetrieveRequest,
    answer,
    blank,
    parse_request,
    passages_of,
)
from coseek.serve.settings import ServeSettings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of indexes, which become parts of URLs."""
TAKEN = frozenset({"retrieve", "info", "health"})
LIMITS = {"max_queries", "max_query_chars", "max_context_chars", "max_topk", "max_hits", "max_body_bytes"}
"""Settings that bound a request; `/info` states them."""
_SECRET = frozenset({"token", "secret", "password", "key", "authorization"})
_MANY_HITS = 2_000
"""Hits from which an answer is serialised in a thread, so that other requests are not blocked."""


def serve(
    openers: Mapping[str, Callable[[], Retriever]], settings: ServeSettings, ready: Callable[[str], None]
) -> None:
    """Serve until a signal comes; `ready` is called with the URL once everything is open. See `SearchService`."""
    token = token_of(settings)
    service = SearchService(openers, settings)
    serve_app(service, make_app(service, token), ready)


@dataclass(frozen=True, slots=True)
class Index:
    """An open retriever."""

    retriever: Retriever
    passages: int | None
    """`None` where the corpus is remote."""
    card: JsonObject
    """Its part of the answer of `/info`."""

    @classmethod
    def of(cls, name: str, retriever: Retriever) -> "Index":
        corpus = retriever.corpus
        passages = None if corpus is None else len(corpus)
        settings = getattr(retriever, "settings", None)
        shown_settings = without_secrets(dump_settings(settings)) if isinstance(settings, Settings) else {}
        card: JsonObject = {
            "index": name,
            "name": retriever.name,
            "identity": retriever.identity,
            "view": str(getattr(settings, "view", "query")),
            "reads": fields_read(retriever).to_json(),
            "passages": passages,
            "settings": shown_settings,
        }
        return cls(retriever, passages, card)


class SearchService(Service[ServeSettings]):
    """Serves named retrievers, which are opened in the search thread."""

    def __init__(self, openers: Mapping[str, Callable[[], Retriever]], settings: ServeSettings) -> None:
        """`openers`: name → a function that opens the retriever; the first is the default."""
        for name in openers:
            check_name(name)
        if not openers:
            raise SettingError("there is nothing to serve; name an index")
        if settings.max_queries > settings.queue:
            raise SettingError(
                f"a request may bring {settings.max_queries} queries and the queue holds {settings.queue}; "
                "make the queue longer or requests smaller"
            )
        super().__init__(settings, WorkThread("coseek-search"))
        self.names = tuple(openers)
        self.batcher = Batcher(
            self.thread, settings.batch, settings.queue, settings.wait_ms / 1_000, settings.most_wait_s
        )
        self.indexes: dict[str, Index] = {}
        self._openers = openers
        self._opening = next(iter(openers))

    @property
    def unopened(self) -> str:
        """Why nothing can be searched yet; empty when all is open."""
        if self.failure is not None:
            return f"{self._opening} could not be opened"
        return f"{self._opening} is being opened" if len(self.indexes) < len(self.names) else ""

    def index(self, name: str) -> Index:
        """An open index. Raises `RefusedRequest` (503) until all indexes are open."""
        if self.unopened:
            raise RefusedRequest(503, f"{self.unopened}; retry later", retry_after_s=1)
        return self.indexes[name]

    def health(self) -> JsonObject:
        reason = self.unopened
        return {"ready": not reason, "why": reason, "waiting": self.batcher.waiting, "faults": self.batcher.faults}

    def info(self, name: str) -> JsonObject:
        """The card of an index, with what it reads of a query's context, and the limits of a request."""
        limits = self.settings.model_dump(include=LIMITS)
        fields: JsonObject = {"topk": self.settings.topk, "limits": limits, "indexes": list(self.names)}
        return {**self.index(name).card, **fields, "coseek": __version__}

    def _open(self) -> None:
        for name, opener in self._openers.items():
            self._opening = name
            index = Index.of(name, opener())
            if index.passages is not None:  # a search of a remote retriever may cost money
                with suppress(RetrieverError):  # a request that meets the same error reports it
                    index.retriever.search(["warm up"], 1)  # so that encoders are loaded before the first request
            self.indexes[name] = index


def make_app(service: SearchService, token: str | None = None) -> App:
    """The whole application. It opens and closes the service with its own lifespan."""
    app = new_app(service, lambda status, sentence, kind: {"error": sentence})
    for name in (None, *service.names):
        _add_index(app, service, name)

    def fault(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"the retriever failed: {error}"}, 502)

    app.add_exception_handler(RetrieverError, fault)
    return AccessMiddleware(cast(App, app), token, service.settings.log)


def _add_index(app: FastAPI, service: SearchService, name: str | None) -> None:
    """Add the paths of one index; `None` stands for the default index."""
    prefix = "" if name is None else f"/{name}"
    index_name = name or service.names[0]

    async def info() -> Response:
        return JSONResponse(service.info(index_name))

    app.add_api_route(f"{prefix}/retrieve", _retrieve(service, index_name), methods=["POST"], response_model=None)
    app.add_api_route(f"{prefix}/info", info, methods=["GET"])


def _retrieve(service: SearchService, name: str) -> Callable[[Request], Awaitable[Response]]:
    async def retrieve(request: Request) -> Response:
        limits = service.settings
        record = cast(JsonObject, request.scope[RECORD])
        wanted = await read_body(request, limits, partial(parse_request, limits=limits))
        index = service.index(name)
        k = passages_of(wanted, limits, index.passages)
        record |= {"index": name, "queries": len(wanted.queries), "k": k}
        if limits.log_queries:
            record["texts"] = [Query.of(query).text for query in wanted.queries]
        queries = [query for query in wanted.queries if not blank(query)]
        lists: list[list[Hit]] = []
        if queries:
            job = await until_disconnect(request, service.batcher.search(index.retriever, queries, k))
            record["queue_ms"] = round((job.began - job.arrived) * 1_000, 2)
            record |= {"engine_ms": round((job.ended - job.began) * 1_000, 2), "batch": job.batch}
            if job.fault is not None:
                raise job.fault
            lists = job.lists
        body = await _written(_in_place(wanted, lists), wanted, limits.max_answer_bytes)
        return Response(body, media_type="application/json", headers={IDENTITY: str(index.card["identity"])})

    return retrieve


def _in_place(wanted: RetrieveRequest, lists: list[list[Hit]]) -> list[list[Hit]]:
    """One list for each query, an empty one for a blank query."""
    if len(lists) == len(wanted.queries):
        return lists
    searched = iter(lists)
    return [[] if blank(query) else next(searched) for query in wanted.queries]


async def _written(lists: list[list[Hit]], wanted: RetrieveRequest, max_bytes: int) -> bytes:
    try:
        return await offload(sum(map(len, lists)) >= _MANY_HITS, partial(answer, lists, wanted, max_bytes))
    except ValueError:
        raise RetrieverError("the retriever returned a score that is not a number") from None


def check_name(name: str) -> None:
    """Refuse a name that cannot be part of a URL, or that is a path of the service."""
    if not NAME.fullmatch(name):
        raise SettingError(f"an index cannot be served as {name!r}; use letters, digits, '-', '_' and '.'")
    if name in TAKEN:
        raise SettingError(f"{name!r} is a path of the service itself; serve the index under another name")


def without_secrets(value: Json) -> Json:
    """Settings without secrets: no value of a `key` or `token`, no user, password or query inside a URL."""
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items() if not _SECRET & set(key.lower().split("_"))}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if isinstance(value, str) and "://" in value:
        return re.split("[?#]", re.sub(r"(?<=://)[^/]*@", "", value))[0]
    return value
