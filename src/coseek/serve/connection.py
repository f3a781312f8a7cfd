"""Connection: uvicorn's HTTP protocol with the limits that it lacks, of time and of bytes.

A client has to send headers and body, and to read its answer, in time. Whatever the parser keeps before an application
sees it (request line, headers, trailers) is counted. When a client leaves, what was begun for it is told.
"""

import asyncio
import json
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeAlias, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coseek.serve.settings import ListenSettings

LEAVING = "coseek.leaving"
"""Key of the ASGI scope with the `Leaving` of the connection."""
Leaving: TypeAlias = set[Callable[[], object]]
"""Calls that are made when the client leaves."""
_A_HEADER = 32
"""Bytes that a header costs besides its letters."""
_A_PIECE = 512
"""Bytes that a piece of a body counts for, at least: the parser hands over each chunk by itself, which takes time."""
_LATE_S = 5.0
"""Seconds after `body_s` in which the application refuses a late body by itself."""
_SLOWEST = 49_152
"""Bytes of an answer that a client has to read in `answer_s`."""
_LOOKS = 4
"""Looks at a client's reading in `answer_s`."""
_FILES = 256
"""File descriptors that a service needs besides those of its connections."""


class _Flow(FlowControl):
    """uvloop raises where reading is stopped or resumed on a connection that the client has just closed."""

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            super().pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            super().resume_reading()


class _Writes:
    """A transport that counts what is written, and drops what comes after its end. uvicorn tells the newest request of
    a connection that its client has left, but not one before it that is being answered; uvloop raises there."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self.written += len(data)
            self._transport.write(data)

    def received(self) -> int:
        """Bytes that have arrived at the client's machine."""
        return self.written - self._transport.get_write_buffer_size() - self._queued()

    def reset(self) -> None:
        """End the connection at once, with what the system keeps for a client that reads nothing."""
        if sys.platform != "win32" and not self._transport.is_closing():
            place = self._transport.get_extra_info("socket").fileno()
            with socket.fromfd(place, socket.AF_INET, socket.SOCK_STREAM) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _queued(self) -> int:
        """Bytes that the system keeps until the client's machine has room for them."""
        if sys.platform != "linux" or self._transport.is_closing():
            return 0
        import fcntl
        import termios

        found = fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return int.from_bytes(found, sys.byteorder)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """One connection; `protocol_of` sets the limits."""

    limits = ListenSettings()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._writes = _Writes(transport)
        super().connection_made(cast(asyncio.Transport, self._writes))
        self.flow = _Flow(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._head = self._unparsed = self._dropped = self._counted = 0
        """Bytes of the head so far; those that the parser keeps; those of a body that nobody reads; those that the body
        counts for."""
        self._too_large = (0, "")
        """Status and sentence for a request that is."""
        self._seen = deque([(0, 0)], maxlen=_LOOKS)
        """Bytes written and received at the last looks."""
        self._leaving: Leaving = set()
        self._look_at: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, f"{self.limits.max_connections} connections are open already; retry later")
            return
        self._wait(self.limits.headers_s)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._look_at):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        for call in tuple(self._leaving):
            call()

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unparsed > self.limits.max_header_bytes:
            self._refuse(*self._large_head)
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._deadline is None and self.timeout_keep_alive_task is None:
            self._wait(self.limits.headers_s)  # an empty line ends the keep-alive, and begins no request

    # --- the parser's calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, object], self.scope)[LEAVING] = self._leaving
        self._head = self._unparsed = self._dropped = self._counted = 0
        if self._deadline is None:
            self._wait(self.limits.headers_s)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _A_HEADER)  # trailers come here, too
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._wait(self.limits.body_s + _LATE_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self.cycle.response_complete:
            self._dropped += len(body)
            if self._dropped > self.limits.max_body_bytes:
                self.transport.close()
        self._counted += max(len(body), _A_PIECE)
        if self._counted > self.limits.max_body_bytes + _A_PIECE and len(body) < _A_PIECE:
            self._stop_reading(413, "the request's body comes in too many small pieces; send larger ones")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._wait(None)
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._unparsed = 0
        self._head += size
        if self._head > self.limits.max_header_bytes:
            self._stop_reading(*self._large_head)

    # --- refusals

    @property
    def _large_head(self) -> tuple[int, str]:
        return 431, f"the headers have more than {self.limits.max_header_bytes} bytes; send fewer"

    def _stop_reading(self, status: int, sentence: str) -> None:
        self._too_large = status, sentence
        raise ValueError(sentence)  # the parser stops, and calls `send_400_response`

    def send_400_response(self, msg: str) -> None:
        status, sentence = self._too_large
        self._refuse(status or 400, sentence or "this is no HTTP/1.1 request")

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer without the application, and close."""
        body = json.dumps({"error": sentence}).encode()
        again = "retry-after: 1\r\n" if status == 503 else ""
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{again}"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    # --- time

    def _wait(self, for_s: float | None) -> None:
        """Wait so long for the rest of the headers, or of the body; `None` for nothing."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if for_s is None else self.loop.call_later(for_s, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        if self.flow.read_paused:  # it is this side that does not read
            self._wait(self.limits.body_s)
        else:
            self.transport.close()

    def _look(self) -> None:
        """Cut a connection whose client reads less than `_SLOWEST` while it could: closing alone would wait for it for
        ever."""
        (written, before), received = self._seen[0], self._writes.received()
        full = len(self._seen) == _LOOKS
        if full and received < written and received - before < _SLOWEST:
            self._writes.reset()
            return
        self._seen.append((self._writes.written, received))
        self._look_at = self.loop.call_later(self.limits.answer_s / _LOOKS, self._look)


def protocol_of(settings: ListenSettings) -> type[Connection]:
    """The protocol with these limits, and no more connections than this process may open files."""
    most = _room(settings.max_connections)

    class Limited(Connection):
        limits = settings.model_copy(update={"max_connections": most})

    return Limited


def _room(connections: int) -> int:
    """How many of so many connections this process may have; its limit of descriptors is raised where it can be."""
    if sys.platform == "win32":
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) and soft == hard:
        return connections
    if soft < connections + _FILES and soft != resource.RLIM_INFINITY:
        soft = connections + _FILES if hard == resource.RLIM_INFINITY else min(connections + _FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - _FILES))
