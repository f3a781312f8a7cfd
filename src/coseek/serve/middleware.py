"""Middleware: the id, the token check, the time and the log line of every request.

Plain ASGI, since a framework's middleware costs more than the rest of a request.
"""

import hmac
import itertools
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Protocol, TypeAlias, cast

from coseek.core.connections import names_this_machine
from coseek.core.files import Json, JsonObject
from coseek.serve.budgets import HeldBytes
from coseek.serve.logs import Log

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

RECORD = "coseek.record"
"""Key of the ASGI scope under which an endpoint finds the JSON object of its log line."""
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_OPEN = frozenset({"/health"})
"""Paths that need no token."""
_PIECE = 65_536
"""Bytes of an answer that are handed to the connection at a time: the next ones wait until the client has read."""


class Stoppable(Protocol):
    """A service that can be stopping."""

    stopping: bool
    held: HeldBytes


class AccessMiddleware:
    """The outermost application."""

    def __init__(self, app: App, service: Stoppable, token: str | None, log: Log | None) -> None:
        self._app = app
        self._service = service
        self._token = None if token is None else b"Bearer " + token.encode()
        self._log = log
        self._start = secrets.token_hex(4)
        self._count = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = cast(Headers, scope["headers"])
        ident = _header(headers, b"x-request-id")
        if not _ID.fullmatch(ident):
            ident = f"{self._start}-{next(self._count)}".encode()
        record: JsonObject = {"status": 500}
        scope[RECORD] = record

        async def send_marked(message: MutableMapping[str, object]) -> None:
            if message["type"] == "http.response.start":
                record["status"] = cast(int, message["status"])
                marked = cast(Headers, message.setdefault("headers", []))
                marked.append((b"x-request-id", ident))
                if self._service.stopping:
                    marked.append((b"connection", b"close"))
            await _send_in_pieces(send, message)

        try:
            if not self._is_meant(headers):
                said = "this service without a token is for this machine alone: ask localhost, or set --token-env"
                await _turn_away(send_marked, 421, said)
            elif self._may_pass(str(scope["path"]), headers):
                await self._app(scope, receive, send_marked)
            else:
                said = "this service needs a token: send the header Authorization: Bearer …"
                await _turn_away(send_marked, 401, said)
        finally:
            self._service.held.free(scope)
            if self._log is not None:
                self._log.add(self._line(scope, record, ident.decode(), time.perf_counter() - began))

    def _is_meant(self, headers: Headers) -> bool:
        """Whether the name that was asked for is of this machine, where no token keeps others out."""
        host = _header(headers, b"host")
        return self._token is not None or not host or names_this_machine(host.decode("latin-1"))

    def _may_pass(self, path: str, headers: Headers) -> bool:
        if self._token is None or path in _OPEN:
            return True
        return hmac.compare_digest(_header(headers, b"authorization"), self._token)

    def _line(self, scope: Scope, record: JsonObject, ident: str, took_s: float) -> JsonObject:
        line: JsonObject = {
            "time": round(time.time(), 3),
            "id": ident,
            "method": cast(Json, scope["method"]),
            "path": str(scope["path"])[:200],
        }
        return {**line, **record, "total_ms": round(took_s * 1_000, 2)}


def _header(headers: Headers, name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


async def _send_in_pieces(send: Send, message: MutableMapping[str, object]) -> None:
    """Send a message; a long body in pieces, of which the connection buffers one or two."""
    body = memoryview(cast(bytes, message.get("body", b"")))
    while len(body) > _PIECE:
        await send({"type": "http.response.body", "body": body[:_PIECE], "more_body": True})
        body = body[_PIECE:]
        message["body"] = body
    await send(message)


async def _turn_away(send: Send, status: int, why: str) -> None:
    body = json.dumps({"error": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    # The body was not read, so the connection cannot be used again.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
