"""Guarded: connections to public addresses only, each with one deadline for everything that happens on it.

The transport's own timeouts count from one byte to the next, so that a server which sends a byte a second is never too
slow for them.
"""

import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from coseek.retrieval.web.addresses import public_address

if TYPE_CHECKING:
    from httpcore import ConnectionPool, NetworkBackend, NetworkStream

Now = Callable[[], float]


@dataclass(frozen=True)
class Deadline:
    """A moment after which nothing is waited for."""

    end: float
    now: Now

    @classmethod
    def after(cls, seconds: float, now: Now = time.monotonic) -> "Deadline":
        return cls(now() + seconds, now)

    def left_s(self) -> float:
        """Seconds that are left; at the deadline the transport's own timeout error."""
        from httpcore import ReadTimeout

        left = self.end - self.now()
        if left <= 0:
            raise ReadTimeout("the deadline has passed")
        return left


@dataclass(frozen=True)
class _Stream:
    """A connection whose every wait ends at the deadline. Stands behind `httpcore.NetworkStream`."""

    stream: "NetworkStream"
    deadline: Deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.stream.read(max_bytes, self.deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.stream.write(buffer, self.deadline.left_s())

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "NetworkStream":
        stream = self.stream.start_tls(ssl_context, server_hostname, self.deadline.left_s())
        return cast("NetworkStream", _Stream(stream, self.deadline))

    def get_extra_info(self, info: str) -> object:
        return self.stream.get_extra_info(info)


@dataclass(frozen=True)
class _Backend:
    """Looks names up once, checks all their addresses, and connects to one that was checked. Stands behind
    `httpcore.NetworkBackend`; TLS still asks for a certificate of the host's name."""

    backend: "NetworkBackend"
    deadline: Deadline
    allow_private: bool

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[tuple[int, int, int]] | None = None,
    ) -> "NetworkStream":
        address = public_address(host, port, self.allow_private)
        stream = self.backend.connect_tcp(address, port, self.deadline.left_s(), local_address, socket_options)
        return cast("NetworkStream", _Stream(stream, self.deadline))


def guarded_pool(deadline: Deadline, allow_private: bool, ssl_context: ssl.SSLContext) -> "ConnectionPool":
    """A pool for one page and its redirects. No proxy: it would look names up itself, and past our check."""
    from httpcore import ConnectionPool, SyncBackend

    backend = _Backend(SyncBackend(), deadline, allow_private)
    return ConnectionPool(
        ssl_context=ssl_context, max_keepalive_connections=0, network_backend=cast("NetworkBackend", backend)
    )
