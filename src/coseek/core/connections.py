"""Connections to HTTP servers: addresses, open calls per server, consecutive faults."""

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from typing import TypeGuard
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from weakref import WeakValueDictionary

from coseek.core.errors import SettingError

# Addresses of servers and web pages.


def is_url(name: object) -> TypeGuard[str]:
    """Whether a name is an address, as opposed to a folder, a file or a part's name."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def parse_base_url(url: str, ends: tuple[str, ...] = ()) -> str:
    """Check a server's address, and strip `ends` from its end, such as `/v1`. Raises `SettingError`."""
    error = SettingError(f"{url!r} is not a server address; write http://HOST:PORT")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise error from None
    if parts.username is not None or parts.password is not None:
        raise SettingError("the address of a server must not hold a password; put a key into an environment variable")
    has_blanks = url.split() != [url.strip()] or not url.strip().isprintable()
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or port == 0 or has_blanks:
        raise error
    base = url.strip().rstrip("/")
    for end in ends:
        base = base.removesuffix(end)
    return base.rstrip("/")


_PORTS = {"http": 80, "https": 443}
_DELIMITERS = "!$&'()*+,;=:@"
"""Characters that RFC 3986 allows unescaped in a path segment, besides letters, digits and `-._~`."""


def canonical_url(url: str) -> str:
    """Normalise the address of a web page: lower-case host, no default port, no fragment, uniform escapes in the path.
    Returns an empty text for anything but an http(s) address, and for an address with a user name."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in _PORTS or parts.username is not None or not host or " " in host or not host.isprintable():
        return ""
    host = f"[{host}]" if ":" in host else host
    netloc = host if port in (None, _PORTS[parts.scheme]) else f"{host}:{port}"
    # Escapes in encodings other than UTF-8 are kept as bytes.
    segments = (unquote(segment, errors="surrogateescape") for segment in (parts.path or "/").split("/"))
    path = "/".join(quote(segment, safe=_DELIMITERS, errors="surrogateescape") for segment in segments)
    query = quote(parts.query, safe=f"{_DELIMITERS}/?%")  # `%`: an escaped & or + differs from a bare one
    return urlunsplit((parts.scheme, netloc, path, query, ""))


def names_this_machine(host: str) -> bool:
    """Whether the Host header of a loopback request names this machine, with any port.

    Prevents DNS rebinding: a website may resolve its own name to this machine, and would then read the answers.
    """
    try:
        return is_local(f"http://{host}")
    except ValueError:  # not a valid address
        return False


def is_local(base: str) -> bool:
    """Whether a server is on this machine."""
    host = urlsplit(base).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Server slots: the number of open calls per server, over all clients of this process.


class ServerSlots:
    """Limits the open calls of one server, whose clients share an event loop. Waiting calls are admitted by rank, the
    lowest first, then by arrival.

    Each call brings its client's limit, so two clients with a limit of 64 open 64 calls together, not 128.
    """

    def __init__(self) -> None:
        self._open_count = 0
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        """A heap of (rank, arrival, limit, turn)."""
        self._arrivals = count()

    @asynccontextmanager
    async def one(self, limit: int, rank: int = 0) -> AsyncIterator[None]:
        """Hold a slot for the block; wait while `limit` calls are open."""
        if self._open_count < limit and not self._waiting:
            self._open_count += 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (rank, next(self._arrivals), limit, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was admitted at the same moment
                    self._free()
                raise
        try:
            yield
        finally:
            self._free()

    def _free(self) -> None:
        """Free a slot, and admit waiting calls."""
        self._open_count -= 1
        while self._waiting and (self._waiting[0][3].cancelled() or self._open_count < self._waiting[0][2]):
            *_, turn = heappop(self._waiting)
            if not turn.cancelled():
                self._open_count += 1
                turn.set_result(None)


_slots: WeakValueDictionary[str, ServerSlots] = WeakValueDictionary()


def slots_of(server: str) -> ServerSlots:
    """The slots of a server, shared by its open and waiting calls. Call it in the event loop of the calls."""
    return _slots.setdefault(server, ServerSlots())


class CircuitBreaker:
    """Stops calls to a server that fails.

    It opens after `after` consecutive faults. After `cool_down_s` seconds one call probes the server.
    """

    def __init__(self, after: int, cool_down_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.after = after
        self.cool_down_s = cool_down_s
        self._clock = clock
        self.faults = 0
        """Consecutive faults."""
        self._open_until = 0.0

    def wait_s(self) -> float:
        """Return 0 if a call may be made, else the seconds until the next probe."""
        now = self._clock()
        if self.faults < self.after:
            return 0.0
        if now < self._open_until:
            return self._open_until - now
        self._open_until = now + self.cool_down_s  # this caller is the probe
        return 0.0

    def worked(self) -> None:
        self.faults = 0

    def failed(self) -> None:
        self.faults += 1
        self._open_until = self._clock() + self.cool_down_s
