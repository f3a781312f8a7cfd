"""Limits: the checks of every request to a service. A refusal is an HTTP status and one sentence.

Request id, token, host name and log line are plain ASGI, since a framework's middleware costs more than the rest of a
request. Slow or endless headers, slow readers and request rates are left to a proxy.
"""

import asyncio
import hmac
import itertools
import json
import re
import secrets
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TypeAlias, TypeVar, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from coseek.core.connections import names_this_machine
from coseek.core.errors import CoseekError
from coseek.core.files import JsonObject
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.core.text import visible
from coseek.serve.settings import ListenSettings

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]
T = TypeVar("T")

BUG = "a bug of the service; its log has the details"
LOOPBACK_ONLY = "this service without a token is for this machine alone: ask localhost, or set --token-env"
TOKEN_NEEDED = "this service needs a token: send the header Authorization: Bearer …"
RECORD = "coseek.record"
"""Key of the ASGI scope under which an endpoint finds the JSON object of its log line."""
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_OPEN = frozenset({"/health"})
"""Paths that need no token."""
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


def parse_object(body: bytes, refusal: RefusedRequest) -> JsonObject:
    """Parse a JSON object. Raises `RefusedRequest` (400) for invalid JSON and `refusal` for another value."""
    try:
        row = parse_lenient(body)
    except InvalidJson as error:
        raise RefusedRequest(400, f"the request cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise refusal
    return row


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
        self._start = secrets.token_hex(4)
        self._count = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        headers = cast(Headers, scope["headers"])
        ident = _header(headers, b"x-request-id")
        if not _ID.fullmatch(ident):
            ident = f"{self._start}-{next(self._count)}".encode()
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
