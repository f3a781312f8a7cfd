"""Connections to HTTP servers: addresses, open calls per server, consecutive faults, errors in answers."""

import asyncio
import ipaddress
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from typing import TypeGuard
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from weakref import WeakValueDictionary

from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject

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


# Errors that servers and proxies send with the status 200, in their many spellings.

_AROUND_ERROR = frozenset(
    ("error", "message", "code", "status", "type", "param", "id", "request_id", "user_id", "object", "created")
    + ("model", "provider", "detail", "success", "choices", "errors", "base_resp", "error_msg", "error_code", "msg")
    + ("statusCode", "status_code")
)
"""All fields that an answer may have if it contains only an error."""
_WENT_WELL = (0, 200, "0", "200", "ok", "success")
"""Codes of success, beside which a message is not an error."""
_FAILED = {"success": ("false",), "ok": ("false",), "timed_out": ("true",), "status": ("error", "failed", "failure")}
"""Field → its lower-case values that mean a failed search."""
_CODES = ("code", "status", "type", "error_code", "status_code", "statusCode")
_TRANSIENT = {"rate_limit_exceeded": 429, "rate_limit_error": 429, "resource_exhausted": 429, "overloaded_error": 503}
"""Name of a transient error → its HTTP status."""


def error_in(row: JsonObject, results: Sequence[str] = ()) -> tuple[str, int | None] | None:
    """Find the error in an answer with the status 200. Returns its message and, if known, its HTTP status; `None`
    without an error.

    An answer with results has no error: `choices`, or passages in the fields `results`. Without `results`, an answer
    with fields that no error has is not an error either, since the fields of other services are unknown.
    """
    fields = {name for name, value in row.items() if value is not None}
    bare = fields <= _AROUND_ERROR
    if row.get("choices") or any(_has_rows(row.get(name)) for name in results) or not (results or bare):
        return None
    error = row.get("error") or row.get("errors")
    error = error[0] if isinstance(error, list) and error else error
    base = row.get("base_resp")  # MiniMax
    if not error and isinstance(base, dict) and base.get("status_code"):
        error = base
    went_well = row.get("success") is True or any(row.get(name) in _WENT_WELL for name in ("code", "status"))
    message = next((text for name in ("error_msg", "msg", "message", "detail") if (text := row.get(name))), None)
    if not error and any(_is_failure(name, row.get(name)) for name in (*_FAILED, *_CODES)):
        error = message or row
    elif not error and bare and not went_well:  # beside an empty list, a message may say why it is empty
        error = message if isinstance(message, str) or results else None
    return _message_and_status(error, row) if error else None


def _message_and_status(error: Json, row: JsonObject) -> tuple[str, int | None]:
    """The message of an error, and the HTTP status in it or in the answer that contains it."""
    holder = error if isinstance(error, dict) else row
    status = next((code for name in _CODES if (code := _status(holder.get(name)))), None)
    texts = (holder.get("message"), holder.get("status_msg"), holder.get("error"), error)
    return next((text for text in texts if isinstance(text, str)), json.dumps(error)), status


def _is_failure(name: str, value: Json) -> bool:
    """Whether a field says that a search failed. Positive codes outside the HTTP range may mean success."""
    negative = type(value) is int and value < 0
    return str(value).lower() in _FAILED.get(name, ()) or (name in _CODES and (negative or _status(value) is not None))


def _has_rows(value: Json) -> bool:
    """Whether a list has items, at any depth of lists and objects."""
    if isinstance(value, dict):
        return any(map(_has_rows, value.values()))
    return isinstance(value, list) and any(
        _has_rows(item) if isinstance(item, list) else item is not None for item in value
    )


def _status(value: Json) -> int | None:
    """Parse the HTTP status of an error from a number, digits or a name; `None` for anything else."""
    text = value.lower() if isinstance(value, str) else ""
    number = int(text) if text.isascii() and text.isdigit() else _TRANSIENT.get(text, value)
    return number if type(number) is int and 400 <= number < 600 else None
