"""Connections to HTTP servers: addresses, connections kept open, calls open at each server, faults in a row."""

import asyncio
import ipaddress
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, TypeAlias, TypeGuard
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakValueDictionary

from coseek.core.errors import SettingError

if TYPE_CHECKING:
    import httpcore

    Connection: TypeAlias = httpcore.AsyncHTTPConnection | httpcore.AsyncConnectionPool
    """A pool of one connection where there is a proxy."""


# Addresses: which names are addresses of servers, and the base of their paths.


def is_url(name: object) -> TypeGuard[str]:
    """Whether a name is the address of a server, and no folder, file or part."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def parse_base_url(url: str, ends: tuple[str, ...] = ()) -> str:
    """Check a server's address and remove any of `ends` from its end. Raises `SettingError`."""
    wrong = SettingError(f"{url!r} is not a server address; write http://HOST:PORT")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.username is not None or parts.password is not None:
        raise SettingError("the address of a server must not hold a password; put a key into an environment variable")
    holes = url.split() != [url.strip()] or not url.strip().isprintable()
    scheme = parts.scheme in ("http", "https")
    if not scheme or not parts.hostname or parts.query or parts.fragment or port == 0 or holes:
        raise wrong
    base = url.strip().rstrip("/")
    for end in ends:
        base = base.removesuffix(end)
    return base.rstrip("/")


_PORTS = {"http": 80, "https": 443}
_DELIMITERS = "!$&'()*+,;=:@"
"""Characters that a segment of a path may hold unescaped, besides letters, digits and `-._~` (RFC 3986)."""


def canonical_url(url: str) -> str:
    """One spelling for the address of a web page: host in lower case, no default port, no fragment, and the same
    characters of the path escaped. Empty for anything but an http(s) address, and for one with a user name."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in _PORTS or parts.username is not None or not host or " " in host or not host.isprintable():
        return ""
    host = f"[{host}]" if ":" in host else host
    netloc = host if port in (None, _PORTS[parts.scheme]) else f"{host}:{port}"
    # Escapes of other encodings than UTF-8 are kept as bytes.
    segments = (unquote(segment, errors="surrogateescape") for segment in (parts.path or "/").split("/"))
    path = "/".join(quote(segment, safe=_DELIMITERS, errors="surrogateescape") for segment in segments)
    query = quote(parts.query, safe=f"{_DELIMITERS}/?%")  # an escaped & or + has another meaning than a bare one
    return urlunsplit((parts.scheme, netloc, path, query, ""))


# Connections to one HTTP server: kept open and used again, through the proxy that the environment names.
#
# On httpcore, without httpx's client and connection pool: these take more processor time for a request than the rest
# of a call, and a pool of 64 connections looks at all of them each time. No retries, redirects or compressed answers.

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


# Server slots: how many calls are open at each server, over all clients of this process.


@dataclass(frozen=True, slots=True, order=True)
class _Waiter:
    """A call that waits for a slot, in the event loop of its client."""

    rank: int
    arrival: int
    limit: int = field(compare=False)
    loop: asyncio.AbstractEventLoop = field(compare=False)
    turn: "asyncio.Future[None]" = field(compare=False)


class ServerSlots:
    """The open calls of one server. Clients in different threads share it; calls are admitted by rank, the lowest
    first, and then in the order of arrival.

    Each call brings its client's limit, so that two clients with a limit of 64 open 64 calls together, not 128.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._waiting: list[_Waiter] = []
        """A heap."""
        self._arrivals = count()

    @asynccontextmanager
    async def one(self, limit: int, rank: int = 0) -> AsyncIterator[None]:
        """Hold a slot; waits while `limit` calls are open."""
        waiter = self._wait_in_line(limit, rank)
        if waiter is not None:
            try:
                await waiter.turn
            except asyncio.CancelledError:
                with self._lock:
                    admitted = waiter not in self._waiting
                    if not admitted:
                        self._waiting.remove(waiter)
                        heapify(self._waiting)
                if admitted:
                    self._free()
                raise
        try:
            yield
        finally:
            self._free()

    def _wait_in_line(self, limit: int, rank: int) -> _Waiter | None:
        """Take a slot and return `None`, or queue."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._open < limit and not self._waiting:
                self._open += 1
                return None
            waiter = _Waiter(rank, next(self._arrivals), limit, loop, loop.create_future())
            heappush(self._waiting, waiter)
            return waiter

    def _free(self) -> None:
        """Free a slot, and admit those that wait."""
        with self._lock:
            self._open -= 1
            while self._waiting and self._open < self._waiting[0].limit:
                waiter = heappop(self._waiting)
                self._open += 1
                waiter.loop.call_soon_threadsafe(_admit, waiter.turn)


def _admit(turn: "asyncio.Future[None]") -> None:
    if not turn.done():  # cancelled meanwhile; the waiter frees its slot
        turn.set_result(None)


_slots: WeakValueDictionary[str, ServerSlots] = WeakValueDictionary()
_finding = threading.Lock()


def slots_of(server: str) -> ServerSlots:
    """The slots of a server, the same object for all clients of this process."""
    with _finding:
        found = _slots.get(server)
        if found is None:
            found = _slots[server] = ServerSlots()
        return found


# Circuit breaker: stops calls to a server that fails.


class CircuitBreaker:
    """Stops calls to a server that fails. Thread-safe.

    Closed until `after` faults in a row, then open for `cool_down_s` seconds, then one probe decides.
    """

    def __init__(self, after: int, cool_down_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.after = after
        self.cool_down_s = cool_down_s
        self._clock = clock
        self.faults = 0
        """Faults in a row."""
        self._open_until = 0.0
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Return 0 when a call may be made, else the seconds until the next probe."""
        with self._lock:
            if self.faults < self.after:
                return 0.0
            now = self._clock()
            if now < self._open_until:
                return self._open_until - now
            self._open_until = now + self.cool_down_s  # this caller is the probe
            return 0.0

    def worked(self) -> None:
        with self._lock:
            self.faults = 0

    def failed(self) -> None:
        with self._lock:
            self.faults += 1
            if self.faults >= self.after:
                self._open_until = self._clock() + self.cool_down_s
