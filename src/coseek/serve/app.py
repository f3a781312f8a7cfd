"""App: the HTTP paths of a retriever service. All answer with JSON; an error is `{"error": sentence}`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, cast

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from coseek import __version__
from coseek.core.errors import RetrieverError
from coseek.core.files import JsonObject
from coseek.data.passage import Hit
from coseek.retrieval.query import Query
from coseek.retrieval.responses import IDENTITY
from coseek.serve.batching import SearchJob
from coseek.serve.budgets import HeldBytes, check_values
from coseek.serve.connection import LEAVING, Leaving
from coseek.serve.contract import BUG, RefusedRequest, RetrieveRequest, answer, blank, parse_request, passages_of
from coseek.serve.logs import Log
from coseek.serve.middleware import RECORD, AccessMiddleware, App
from coseek.serve.openapi import answers, request_body
from coseek.serve.service import RetrieverService
from coseek.serve.settings import ListenSettings
from coseek.serve.worker import AnyService

_MANY_HITS = 2_000
"""Hits from which an answer is serialised in a thread, so that other requests are not blocked."""
_LONG_BODY = 65_536
"""Bytes from which a body is read in a thread."""
_STOP_S = 5.0


T = TypeVar("T")
ErrorBody: TypeAlias = Callable[[int, str, str], JsonObject]
"""(status, sentence, kind) → the body of an answer that is an error."""


class Bounded(Protocol):
    """A service with limits."""

    @property
    def settings(self) -> ListenSettings: ...

    @property
    def held(self) -> HeldBytes: ...


def make_app(service: RetrieverService, token: str | None = None) -> App:
    """The whole application. It starts and closes the service with its own lifespan."""
    log = Log() if service.settings.log else None
    app = new_app(service, log, lambda status, sentence, kind: {"error": sentence}, openapi=True)
    for name in (None, *service.names):
        _add_index(app, service, name)

    def fault(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"the retriever failed: {error}"}, 502)

    app.add_exception_handler(RetrieverError, fault)
    return AccessMiddleware(cast(App, app), service, token, log)


def new_app(service: AnyService, log: Log | None, error_body: ErrorBody, openapi: bool) -> FastAPI:
    """An application with `/health` and error answers, whose lifespan starts and closes the service and its log."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        if log is not None:
            log.start()
        yield
        service.close(_STOP_S)
        if log is not None:
            log.close()

    async def health() -> Response:
        found = service.health()
        return JSONResponse(found, 200 if found["ready"] else 503)

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedRequest)
        headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        if error.status in (408, 413):
            headers["connection"] = "close"  # the rest of the request is not read
        return JSONResponse(error_body(error.status, str(error), "refused"), error.status, headers)

    def no_such_path(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        body = error_body(error.status_code, str(error.detail), "refused")
        return JSONResponse(body, error.status_code, error.headers)

    def bug(request: Request, error: Exception) -> Response:
        return JSONResponse(error_body(500, BUG, "bug"), 500)

    app = FastAPI(
        title="coseek",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/openapi.json" if openapi else None,
        docs_url=None,  # the pages of documentation would load scripts from elsewhere
        redoc_url=None,
    )
    app.add_api_route("/health", health, methods=["GET"], summary="Whether it is ready, and why not.")
    app.add_exception_handler(RefusedRequest, refused)
    app.add_exception_handler(HTTPException, no_such_path)
    app.add_exception_handler(Exception, bug)
    return app


def _add_index(app: FastAPI, service: RetrieverService, name: str | None) -> None:
    """Add the paths of one index; `None` stands for the default index."""
    prefix = "" if name is None else f"/{name}"
    known = name or service.names[0]
    app.add_api_route(
        f"{prefix}/retrieve",
        _retrieve(service, known),
        methods=["POST"],
        summary=f"Search {known}.",
        responses=answers(),
        openapi_extra=request_body(service.settings),
        operation_id=f"retrieve_{name or 'default'}",
    )
    app.add_api_route(
        f"{prefix}/info", _info(service, known), methods=["GET"], operation_id=f"info_{name or 'default'}"
    )


def _info(service: RetrieverService, name: str) -> Callable[[], Awaitable[Response]]:
    async def info() -> Response:
        return JSONResponse(await service.aside(service.index(name).follows, lambda: service.info(name)))

    return info


def _retrieve(service: RetrieverService, name: str) -> Callable[[Request], Awaitable[Response]]:
    async def retrieve(request: Request) -> Response:
        record = cast(JsonObject, request.scope[RECORD])
        wish = await read_body(request, service, partial(parse_request, limits=service.settings))
        index = service.index(name)
        k = passages_of(wish, service.settings, index.passages)
        record |= {"index": name, "queries": len(wish.queries), "k": k}
        if service.settings.log_queries:
            record["texts"] = [Query.of(query).text for query in wish.queries]
        asked = [query for query in wish.queries if not blank(query)]
        lists: list[list[Hit]] = []
        if asked:
            job = await service.batcher.search(index.retriever, asked, k, cast(Leaving, request.scope.get(LEAVING)))
            record |= _times(job)
            if job.fault is not None:
                raise job.fault
            lists = job.lists
        text = await _written(service, _in_place(wish, lists), wish)
        service.held.take(request.scope, len(text))
        identity = await service.aside(index.follows, lambda: index.identity)
        return Response(text, media_type="application/json", headers={IDENTITY: identity})

    return retrieve


async def read_body(request: Request, service: AnyService, read: Callable[[bytes], T]) -> T:
    """Read a request's JSON; a long one in a thread."""
    body = await whole_body(request, service)

    def checked() -> T:
        check_values(body, service.settings.max_values)
        return read(body)

    return await service.aside(len(body) > _LONG_BODY, checked)


async def whole_body(request: Request, service: Bounded) -> bytes:
    """The whole body, within the limits of size and time."""
    limits = service.settings
    most = limits.max_body_bytes
    too_large = RefusedRequest(413, f"the request has more than {most} bytes; send less at a time")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                service.held.take(request.scope, len(part))
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise RefusedRequest(408, f"the request was not complete after {limits.body_s:g} seconds") from None
    except ClientDisconnect:
        raise RefusedRequest(400, "the connection was closed before the request was complete") from None
    return bytes(body)


def _in_place(wish: RetrieveRequest, lists: list[list[Hit]]) -> list[list[Hit]]:
    """One list for each query, an empty one for a blank query."""
    if len(lists) == len(wish.queries):
        return lists
    found = iter(lists)
    return [[] if blank(query) else next(found) for query in wish.queries]


async def _written(service: RetrieverService, lists: list[list[Hit]], wish: RetrieveRequest) -> bytes:
    many = sum(map(len, lists)) >= _MANY_HITS
    try:
        return await service.aside(many, partial(answer, lists, wish, service.settings.max_answer_bytes))
    except ValueError:
        raise RetrieverError("the retriever gave a score that is no number") from None


def _times(job: SearchJob) -> JsonObject:
    return {
        "queue_ms": round((job.began - job.arrived) * 1_000, 2),
        "engine_ms": round((job.ended - job.began) * 1_000, 2),
        "batch": job.batch,
    }


def openai_error(status: int, sentence: str, kind: str) -> JsonObject:
    """The body of an error in OpenAI's format."""
    return {"error": {"message": sentence, "type": kind, "code": status}}


async def while_wanted(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which is cancelled when the client disconnects first."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RefusedRequest(499, "the client has gone")
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
