"""Service: what the services share. Refusals and the checks of every request, the work thread, and an application that
is served on a socket until a signal stops it.

A refusal is an HTTP status and one sentence. Request id, token, host name and log line are plain ASGI, since a
framework's middleware costs more than the rest of a request. Slow or endless headers, slow readers and request rates
are left to a proxy.
"""

import asyncio
import hmac
import json
import os
import re
import secrets
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import FrameType
from typing import TypeAlias, TypeVar, cast

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from coseek.core.connections import names_this_machine
from coseek.core.errors import CoseekError, SettingError
from coseek.core.files import JsonObject
from coseek.core.settings import mistakes
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.core.text import visible
from coseek.serve.settings import ListenSettings

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]
T = TypeVar("T")
B = TypeVar("B", bound="RequestBody")

BUG = "a bug of the service; its log has the details"
LOOPBACK_ONLY = "this service without a token is for this machine alone: ask localhost, or set --token-env"
TOKEN_NEEDED = "this service needs a token: send the header Authorization: Bearer …"
RECORD = "coseek.record"
"""Key of the ASGI scope under which an endpoint finds the JSON object of its log line."""
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_OPEN = frozenset({"/health"})
"""Paths that need no token."""
_SENTENCE = 400
"""Maximum number of characters of a refusal of wrong fields."""
_LONG_BODY = 65_536
"""Bytes from which a body is parsed in a thread."""


class RefusedRequest(CoseekError):
    """A refused request, with an HTTP status and a sentence for the client."""

    def __init__(self, status: int, sentence: str, retry_after_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        # The rest of a request that is too long or too late is not read.
        return headers | ({"connection": "close"} if self.status in (408, 413) else {})


async def read_body(request: Request, limits: ListenSettings, read: Callable[[bytes], T]) -> T:
    """Read a request's body and parse it with `read`, a long body in a thread. Raises `RefusedRequest`."""
    body = await whole_body(request, limits)
    return await offload(len(body) > _LONG_BODY, lambda: read(body))


async def whole_body(request: Request, limits: ListenSettings) -> bytes:
    """The whole body. Raises `RefusedRequest` (413, 408) if it is longer, or takes longer, than the limits."""
    max_bytes = limits.max_body_bytes
    too_large = RefusedRequest(413, f"the request has more than {max_bytes} bytes; send less at a time")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise RefusedRequest(408, f"the request was not complete after {limits.body_s:g} seconds") from None
    except ClientDisconnect:
        raise RefusedRequest(400, "the connection was closed before the request was complete") from None
    return bytes(body)


class RequestBody(BaseModel):
    """The fields of a request. Others are ignored, since clients send more than is read."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


def parse_body(body: bytes, kind: type[B], status: int, example: str) -> B:
    """Parse a request. Raises `RefusedRequest`: 400 for invalid JSON, `status` for another value than an object such as
    the `example`, and for wrong fields."""
    try:
        row = parse_lenient(body)
    except InvalidJson as error:
        raise RefusedRequest(400, f"the request cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise RefusedRequest(status, f"the request must be a JSON object such as {example}")
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        sentences = "; ".join(sentence for _, sentence in mistakes(error, kind, row))
        raise RefusedRequest(status, sentences[:_SENTENCE]) from None


async def offload(is_long: bool, call: Callable[[], T]) -> T:
    """The result of a call. A long call runs in a thread, so that other requests are not blocked."""
    return await asyncio.to_thread(call) if is_long else call()


async def until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which is cancelled if the client disconnects first."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedRequest(499, "the client has gone")
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()


def print_bug() -> None:
    """Print the traceback of the current exception, whose message may quote any text."""
    print(visible(traceback.format_exc()), file=sys.stderr, end="", flush=True)


class AccessMiddleware:
    """The outermost application: checks a request, assigns its id, and logs it."""

    def __init__(self, app: App, token: str | None, log: bool) -> None:
        self._app = app
        self._token = None if token is None else b"Bearer " + token.encode()
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        headers = cast(Headers, scope["headers"])
        ident = _header(headers, b"x-request-id")
        if not _ID.fullmatch(ident):
            ident = secrets.token_hex(8).encode()
        record: JsonObject = {"status": 500}
        scope[RECORD] = record

        async def send_marked(message: MutableMapping[str, object]) -> None:
            if message["type"] == "http.response.start":
                record["status"] = cast(int, message["status"])
                cast(Headers, message.setdefault("headers", [])).append((b"x-request-id", ident))
            await send(message)

        try:
            if not self._host_is_allowed(headers):
                await _refusal(421, LOOPBACK_ONLY)(scope, receive, send_marked)
            elif not self._token_is_valid(str(scope["path"]), headers):
                await _refusal(401, TOKEN_NEEDED)(scope, receive, send_marked)
            else:
                await self._app(scope, receive, send_marked)
        finally:
            if self._log:
                target = {"method": str(scope["method"]), "path": str(scope["path"])[:200]}
                total_ms = round((time.perf_counter() - started_s) * 1_000, 2)
                line = {"time": round(time.time(), 3), "id": ident.decode(), **target, **record, "total_ms": total_ms}
                print(json.dumps(line), file=sys.stderr, flush=True)

    def _host_is_allowed(self, headers: Headers) -> bool:
        """Whether the host name is one of this machine, as required without a token."""
        host = _header(headers, b"host")
        return self._token is not None or not host or names_this_machine(host.decode("latin-1"))

    def _token_is_valid(self, path: str, headers: Headers) -> bool:
        if self._token is None or path in _OPEN:
            return True
        return hmac.compare_digest(_header(headers, b"authorization"), self._token)


def _header(headers: Headers, name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _refusal(status: int, sentence: str) -> JSONResponse:
    # The body was not read, so the connection cannot be used again.
    headers = {"connection": "close", **({"www-authenticate": "Bearer"} if status == 401 else {})}
    return JSONResponse({"error": sentence}, status, headers)


ErrorBody: TypeAlias = Callable[[int, str, str], JsonObject]
"""(status, sentence, kind) → the body of an error response."""
_BACKLOG = 1_024
_KEEP_ALIVE_S = 75
"""Seconds for which an idle connection is kept open."""


class WorkThread:
    """One thread for work that must not block the event loop. Calls run one after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._ended: Callable[[], bool] = lambda: True
        """Whether the last call has ended."""

    async def run(self, call: Callable[[], T]) -> T:
        """The result of a call. Cancellation does not stop a call that is running."""
        future = self._pool.submit(call)
        self._ended = future.done
        return await asyncio.wrap_future(future)

    @property
    def busy(self) -> bool:
        return not self._ended()

    def close(self) -> None:
        """End the thread after the running call, if any."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Service(ABC):
    """Opens what it serves in its thread, so that `/health` responds meanwhile."""

    def __init__(self, settings: ListenSettings, thread: WorkThread, opening: str) -> None:
        self.settings, self.thread = settings, thread
        self.opening = opening
        """The name of what is being opened; "" when everything is open."""
        self.failure: Exception | None = None
        """Why it could not be opened."""
        self.when_open: Callable[[], None] = lambda: None
        """Called in the event loop when everything is open or opening has failed (`failure`)."""

    @property
    def not_ready(self) -> str:
        """Why no request can be answered now; "" when the service is ready."""
        if self.failure is not None:
            return f"{self.opening} could not be opened"
        return f"{self.opening} is being opened" if self.opening else ""

    def check_ready(self) -> None:
        """Raise `RefusedRequest` (503) until everything is open."""
        if self.not_ready:
            raise RefusedRequest(503, f"{self.not_ready}; retry later", retry_after_s=1)

    def health(self) -> JsonObject:
        """The response of `/health`: `ready`, `why` not, and counts."""
        return {"ready": not self.not_ready, "why": self.not_ready, **self._counts()}

    @abstractmethod
    def _counts(self) -> JsonObject:
        """Counts of requests."""

    @abstractmethod
    def _open(self) -> None:
        """Open everything; called in the thread."""

    async def open(self) -> None:
        try:
            await self.thread.run(self._open)
            self.opening = ""
        except Exception as error:  # noqa: BLE001 (raised again by whoever runs the service)
            self.failure = error
        self.when_open()

    async def close(self) -> None:
        """Called at the end, after every request has been answered."""
        self.thread.close()


def new_app(service: Service, error_body: ErrorBody) -> FastAPI:
    """An application with `/health` and error responses, whose lifespan opens and closes the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.ensure_future(service.open())
        yield
        opening.cancel()
        await service.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.get("/health")
    async def health() -> Response:
        body = service.health()
        return JSONResponse(body, 200 if body["ready"] else 503)

    @app.exception_handler(RefusedRequest)
    async def refused(request: Request, error: RefusedRequest) -> Response:
        return JSONResponse(error_body(error.status, str(error), "refused"), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> Response:
        body = error_body(error.status_code, str(error.detail), "refused")
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return JSONResponse(error_body(500, BUG, "bug"), 500)

    return app


def serve_app(service: Service, app: App, ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives. `ready` is called with the URL when everything is open. Raises the error if opening
    fails."""
    server, listening = Server(app, service.settings), bound(service.settings.host, service.settings.port)
    url = url_of(listening)

    def when_open() -> None:
        if service.failure is None:
            ready(url)
        else:
            server.should_exit = True

    service.when_open = when_open
    server.run(sockets=[listening])
    if service.failure is not None:
        raise service.failure
    if service.thread.busy:  # with work that nobody waits for, but whose end the interpreter would await
        sys.stdout.flush()
        os._exit(0)


class Server(uvicorn.Server):
    """uvicorn, which ends with exit code 0 after the first signal, and immediately after a second."""

    def __init__(self, app: App, settings: ListenSettings) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            limit_concurrency=settings.max_connections + 1,
            backlog=_BACKLOG,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop. uvicorn's own handler would raise the signal again at the end, which would be the exit code."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `SettingError` if the address or port cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror:
        raise SettingError(f"there is no address {host!r} on this machine; listen at 127.0.0.1") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingError(
            f"port {port} of {host} cannot be used: {reason}; name another, or 0 for a free one"
        ) from None


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def token_of(settings: ListenSettings) -> str | None:
    """The token that requests must send, from the environment; `None` on the loopback without `token_env`."""
    if settings.token_env is None:
        if not is_loopback(settings.host):
            raise SettingError(
                f"{settings.host} can be reached from other machines, so requests need a token; put one into an "
                "environment variable, and name that with --token-env"
            )
        return None
    token = os.environ.get(settings.token_env, "")
    if not token.strip():
        raise SettingError(f"the environment variable {settings.token_env} is empty; put the token into it")
    return token.strip()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return names_this_machine(f"[{host}]" if ":" in host else host)
