"""Public connections: HTTP connections to public addresses only, each with one deadline for all its operations.

A page's URL comes from a provider or a redirect. An attacker could make it point at `http://127.0.0.1/…` or at the
metadata service of a cloud. The deadline is needed because the transport's timeouts apply per read, so that a server
sending one byte per second would never time out.
"""

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from httpcore import ConnectionPool, NetworkBackend, NetworkStream

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class RefusedAddress(ValueError):
    """A host that must not be fetched from; the message says why."""


def public_address(host: str, port: int, allow_private: bool = False) -> str:
    """Resolve a host to the IP address to connect to; all must be public. A second lookup might return another one."""
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise RefusedAddress("the host has no address") from None
    # A scope such as `%eth0` belongs to link-local addresses, which are refused anyway.
    found = [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
    if not allow_private and not all(is_public(address) for address in found):
        raise RefusedAddress("the host is on this machine or in a private network")
    return str(found[0])


def is_public(address: IpAddress) -> bool:
    """Whether an address is public, including an IPv4 address embedded in an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner: list[IpAddress | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address.is_site_local or not all(is_public(one) for one in inner if one is not None):
            return False
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # the embedded address is public
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


@dataclass(frozen=True)
class Deadline:
    """A point in time after which operations fail."""

    end: float
    """On the clock `time.monotonic`."""

    def left_s(self) -> float:
        """The remaining seconds. Raises `httpcore.ReadTimeout` after the deadline."""
        from httpcore import ReadTimeout

        left = self.end - time.monotonic()
        if left <= 0:
            raise ReadTimeout("the deadline has passed")
        return left


@dataclass(frozen=True)
class _Stream:
    """An `httpcore.NetworkStream` whose operations all use the deadline."""

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
    """An `httpcore.NetworkBackend` that resolves a host once, checks all its addresses, and connects to a checked one.
    TLS still verifies the certificate against the host's name."""

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
    """A pool for one page and its redirects. It uses no proxy, which would resolve names without the check."""
    from httpcore import ConnectionPool, SyncBackend

    backend = _Backend(SyncBackend(), deadline, allow_private)
    return ConnectionPool(
        ssl_context=ssl_context, max_keepalive_connections=0, network_backend=cast("NetworkBackend", backend)
    )
