"""Connections to one HTTP server: kept open and used again, through the proxy that the environment names.

On httpcore, without httpx's client and connection pool: these take more processor time for a request than the rest of
a call, and a pool of 64 connections looks at all of them each time. No retries, redirects or compressed answers.
"""

import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    import httpcore

    Connection: TypeAlias = httpcore.AsyncHTTPConnection | httpcore.AsyncConnectionPool
    """A pool of one connection where there is a proxy."""

_KEEP_S = 60.0
"""Seconds that an unused connection is kept."""


class Connections:
    """The connections to one server, in one event loop."""

    def __init__(self, base: str, headers: Mapping[str, str], connect_s: float) -> None:
        """`headers` are sent with every request; names are in lower case."""
        import httpx

        # Loading certificates is slow and needless without TLS.
        self._tls = httpx.create_ssl_context() if base.startswith("https:") else None
        self._proxy = _proxy_of(base)
        self._extensions = {"timeout": {"connect": connect_s}}
        self._headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "coseek", **headers}
        self._url = lru_cache(httpx.URL)
        """Parsed addresses: most calls have the same one."""
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        """A stack, so that connections expire which are seldom needed."""

    @asynccontextmanager
    async def sent(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> "AsyncIterator[httpcore.Response]":
        """Send a request; the body of the response is not read yet. Raises httpcore's errors and `httpx.InvalidURL`."""
        import httpcore

        asked = self._url(url)
        named = {**self._headers, **{name.lower(): value for name, value in headers.items()}}
        if method == "POST":
            named["content-length"] = str(len(content or b""))
        lines = [(b"host", asked.netloc), *((name.encode(), value.encode()) for name, value in named.items())]
        target = httpcore.URL(scheme=asked.raw_scheme, host=asked.raw_host, port=asked.port, target=asked.raw_path)
        request = httpcore.Request(method, target, headers=lines, content=content, extensions=self._extensions)
        connection = await self._take(target)
        try:
            response = await connection.handle_async_request(request)
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            self._idle.append(connection)

    async def _take(self, url: "httpcore.URL") -> "Connection":
        """A connection that is not in use: an open one, or a new one."""
        import httpcore

        while self._idle:
            connection = self._idle.pop()
            if isinstance(connection, httpcore.AsyncConnectionPool):
                return connection
            if connection.is_available() and not connection.has_expired():
                return connection
            self._open.discard(connection)
            await connection.aclose()
        made: Connection
        if self._proxy is not None:
            made = httpcore.AsyncConnectionPool(self._tls, self._proxy, 1, keepalive_expiry=_KEEP_S)
        else:
            made = httpcore.AsyncHTTPConnection(url.origin, self._tls, keepalive_expiry=_KEEP_S)
        self._open.add(made)
        return made

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            await connection.aclose()


def _proxy_of(base: str) -> "httpcore.Proxy | None":
    """The proxy that the environment names for a server; none for a server on this machine."""
    import httpcore
    import httpx

    parts, named = urlsplit(base), getproxies()
    address = named.get(parts.scheme) or named.get("all")
    if is_local(base) or not address or proxy_bypass(parts.netloc):
        return None
    proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
    return httpcore.Proxy(str(proxy.url), auth=proxy.raw_auth)


def names_this_machine(host: str) -> bool:
    """Whether the Host header of a request that came over loopback is of this machine, with any port.

    A page of another site may point its own name at this machine, and would then read the answers.
    """
    try:
        return is_local(f"http://{host}")
    except ValueError:  # no address
        return False


def is_local(base: str) -> bool:
    """Whether a server is on this machine."""
    host = urlsplit(base).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
