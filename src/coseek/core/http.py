"""An HTTP client for JSON requests: concurrent, with retries and a circuit breaker.

It retries connection errors, timeouts, statuses 408, 409, 429 and 5xx except 501, and answers that are not JSON. Keys
come from the environment and are sent in a header only: redirects are not followed, errors never quote a key, and a key
that a server repeats in its answer is redacted before anything reads it.
"""

import asyncio
import email.utils
import json
import os
import random
import threading
import time
import weakref
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from pydantic import Field

from coseek.core.connections import CircuitBreaker, error_in, is_local, slots_of
from coseek.core.errors import SettingError, missing_extras
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings
from coseek.core.strict_json import InvalidJson, parse_lenient

if TYPE_CHECKING:
    import httpx

MOST_BYTES = 64_000_000
"""Default limit of an answer's length."""
_RETRIED = frozenset({408, 409, 429})
"""Retried statuses below 500."""
_NOT_IMPLEMENTED = 501
"""The only status from 500 on that is not retried."""
_QUOTED = 300
"""Maximum length of a server's message in an error."""
_PLAIN_HEADERS = frozenset({"accept", "content-type"})
"""Headers that contain no secret."""
_KEEP_S = 60.0
"""Seconds after which an idle connection is closed."""
_THREAD = "coseek-calls"
_LEAST_KEY = 16
"""Minimum length of a key to redact in answers. Shorter ones, such as `EMPTY`, may be ordinary words."""

Method: TypeAlias = Literal["GET", "POST"]
T = TypeVar("T")


class Retries(Settings):
    """How often and how long a call is retried."""

    attempts: int = Field(default=4, ge=1)
    """Maximum number of attempts per call. Only transient faults are retried."""
    first_wait_s: float = Field(default=0.5, ge=0)
    """Wait before the second attempt. It doubles before each further one, and is shortened at random by up to half."""
    longest_wait_s: float = Field(default=30.0, ge=0)
    """Longest wait. If a server asks for more (Retry-After), the call fails."""


class HttpSettings(Retries):
    """Concurrency, timeouts, retries and the circuit breaker."""

    concurrency: int = Field(default=32, ge=1)
    """Maximum number of concurrent calls of this process to the server; further calls wait."""
    connect_s: float = Field(default=10.0, gt=0)
    """Seconds to wait for a connection."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds from the start of a call to the last byte of its answer."""
    insistent: bool = False
    """Retry after `longest_wait_s` even if the server asks for a longer wait."""
    break_after: int = Field(default=20, ge=1)
    """Number of consecutive failed calls after which calls fail at once."""
    cool_down_s: float = Field(default=30.0, ge=0)
    """Seconds until a single call probes the server again."""


@dataclass
class HttpStats:
    """Counts of calls."""

    calls: int = 0
    """Requests sent, including retries."""
    retries: int = 0
    answered: int = 0
    failed: int = 0
    """Calls without an answer after all retries."""


class HttpFailure(Exception):
    """A failed call. `status` is the server's HTTP status, if any."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class _TransientFault(HttpFailure):
    """A fault to retry, with the server's Retry-After in seconds."""

    def __init__(self, what: str, wait_s: float = 0.0, status: int | None = None) -> None:
        super().__init__(what, status)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class _Answer:
    """The body and the headers of an answer."""

    text: bytes
    headers: "httpx.Headers"


@dataclass(frozen=True, slots=True)
class _Request:
    """One call. Every attempt sends the same."""

    method: Method
    url: str
    headers: Mapping[str, str] = field(repr=False)
    """May hold a secret."""
    content: bytes | None
    attempts: int | None
    """Maximum number of attempts; `None` takes that of the settings."""


class HttpClient:
    """A thread-safe client of one server. One event loop in a background thread makes the calls of all clients.

    Cancelling a call closes its connection, so that the server can stop.
    """

    def __init__(
        self,
        base: str,
        patience: HttpSettings | None = None,
        key: str | None = None,
        rng: random.Random | None = None,
        *,
        name: str | None = None,
        quotes: bool = True,
        most_bytes: int = MOST_BYTES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`key` is sent as a bearer token. `rng` draws the lengths of waits. `name` is the server's name in errors.

        `quotes=False` keeps the server's messages out of errors, for callers whose own headers contain a secret.
        Answers of more than `most_bytes` bytes are refused.
        """
        with missing_extras("a server"):
            import httpx
        self.base = base
        self.patience = patience or HttpSettings()
        self.stats = HttpStats()
        self._key = key
        self._rng = rng or random.Random()
        self._name = name or base
        self._quotes = quotes
        self._most_bytes = most_bytes
        self._sleep = sleep
        self._breaker = CircuitBreaker(self.patience.break_after, self.patience.cool_down_s)
        authorization = {} if key is None else {"authorization": f"Bearer {key}"}
        # One client per slot: a pool inspects all of its connections at each call, which takes milliseconds for 64.
        self._new_client = partial(
            httpx.AsyncClient,
            headers={"accept-encoding": "identity", "user-agent": "coseek", **authorization},
            # Loading certificates is slow and needless without TLS.
            verify=httpx.create_ssl_context(verify=base.startswith("https:")),
            timeout=httpx.Timeout(None, connect=self.patience.connect_s),
            limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEP_S),
            trust_env=not is_local(base),  # the proxies of the environment
        )
        self._clients: list[httpx.AsyncClient] = []
        self._idle_clients: list[httpx.AsyncClient] = []
        self._open_calls: set[Future[object]] = set()
        self._loop = _loop_of_calls()
        self._finalizer = weakref.finalize(self, _end, self._loop, self._clients, self._open_calls)

    def submit(self, method: Method, path: str, body: JsonObject | None = None, rank: int = 0) -> "Future[JsonObject]":
        """Start a call. The future returns the answer's JSON object or raises `HttpFailure`. Of the calls that wait for
        one of the `concurrency` slots, those with a lower `rank` go first."""
        return self._begin(self._object, method, path, body, None, rank)

    def request(
        self, method: Method, path: str, body: JsonObject | None = None, attempts: int | None = None
    ) -> JsonObject:
        """Make a call and return the answer's JSON object. `attempts` overrides the setting. Raises `HttpFailure`."""
        return _wait_for(self._begin(self._object, method, path, body, None, 0, attempts))

    def fetch(
        self,
        method: Method,
        path: str,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        results: Sequence[str] = (),
    ) -> bytes:
        """Make a call and return the bytes of the answer. Raises `HttpFailure`; with `results`, also if the answer is
        JSON that contains an error and no items in those fields."""

        def read(answer: _Answer) -> bytes:
            if results:
                with suppress(InvalidJson):
                    self._checked(parse_lenient(answer.text), answer, results)
            return answer.text

        return _wait_for(self._begin(read, method, path, body, headers))

    def fetch_json_with_header(
        self, method: Method, path: str, body: JsonObject | None, header: str, results: Sequence[str]
    ) -> tuple[Json, str | None]:
        """Make a call and return the answer, any JSON, and the value of a header (its name in lower case). Retries if
        the answer is not JSON. Raises `HttpFailure`, also if the answer contains an error and no items in the fields
        `results`."""

        def read(answer: _Answer) -> tuple[Json, str | None]:
            return self._checked(self._json(answer), answer, results), answer.headers.get(header)

        return _wait_for(self._begin(read, method, path, body, None))

    def _begin(
        self,
        read: Callable[["_Answer"], T],
        method: Method,
        path: str,
        body: JsonObject | None,
        headers: Mapping[str, str] | None,
        rank: int = 0,
        attempts: int | None = None,
    ) -> "Future[T]":
        if not self._finalizer.alive:
            raise RuntimeError(f"the calls to {self._name} were closed")
        # Escaped, since a lone surrogate cannot be encoded.
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        content_type = {} if body is None else {"content-type": "application/json"}
        request = _Request(method, f"{self.base}{path}", {**content_type, **(headers or {})}, content, attempts)
        call = asyncio.run_coroutine_threadsafe(self._call(read, request, rank), self._loop)
        self._open_calls.add(cast("Future[object]", call))
        call.add_done_callback(self._open_calls.discard)
        return call

    def close(self) -> None:
        """Cancel all calls and close the connections."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"HttpClient({self.base!r})"

    async def _call(self, read: Callable[["_Answer"], T], request: "_Request", rank: int) -> T:
        async with slots_of(self.base).one(self.patience.concurrency, rank):
            try:
                answer = await self._send_with_retries(request, read)
            except HttpFailure:
                self.stats.failed += 1
                raise
            self.stats.answered += 1
            return answer

    async def _send_with_retries(self, request: "_Request", read: Callable[["_Answer"], T]) -> T:
        wait_s = self._breaker.wait_s()
        if wait_s:
            raise self._failure(f"it failed {self._breaker.faults} times in a row and is not asked for {wait_s:.0f} s")
        longest_s = self.patience.longest_wait_s
        attempts = request.attempts or self.patience.attempts
        for attempt in range(1, attempts + 1):
            self.stats.calls += 1
            self.stats.retries += attempt > 1
            try:
                answer = read(await self._send_once(request))
            except _TransientFault as fault:
                too_long = fault.wait_s > longest_s and not self.patience.insistent
                if too_long or attempt == attempts:
                    self._breaker.failed()
                    end = f"({attempt} tries)" if attempt > 1 else "(1 try)"
                    if too_long:
                        setting = f"patience: {{longest_wait_s: {fault.wait_s + 1:.0f}}} (for a web search, retries: …)"
                        end = f"and asks to wait {fault.wait_s:.0f} s; set {setting}"
                    raise self._failure(f"{fault} {end}", fault.status) from None
                await self._sleep(min(longest_s, max(fault.wait_s, self._wait_s(attempt))))
            else:
                self._breaker.worked()
                return answer
        raise AssertionError("the last attempt returns or raises")

    async def _send_once(self, request: "_Request") -> "_Answer":
        import httpx

        if not self._idle_clients:
            self._idle_clients.append(self._new_client())
            self._clients.append(self._idle_clients[-1])
        client = self._idle_clients.pop()
        try:
            async with (
                asyncio.timeout(self.patience.timeout_s),
                client.stream(
                    request.method, request.url, headers=dict(request.headers), content=request.content
                ) as response,
            ):
                text = await self._body(response)
        except TimeoutError:
            raise _TransientFault(f"no answer within {self.patience.timeout_s:g} s") from None
        except httpx.ConnectTimeout:
            raise _TransientFault(f"no connection within {self.patience.connect_s:g} s") from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise self._failure(f"it could not be asked ({type(error).__name__})") from None
        except httpx.RequestError as error:
            reason = self.quoted(str(error)) or type(error).__name__
            raise _TransientFault(f"the connection failed: {reason}; is it running?") from None
        finally:
            self._idle_clients.append(client)
        status = response.status_code
        if 200 <= status < 300:
            secrets = [value for name, value in request.headers.items() if name.lower() not in _PLAIN_HEADERS]
            return _Answer(_redacted(text, [*secrets, self._key or ""]), response.headers)
        raise self._refusal(status, response.headers.get("retry-after"), text)

    async def _body(self, response: "httpx.Response") -> bytes:
        """Read and decompress the whole answer. httpx itself would accept a truncated compressed answer, and would
        return an unknown coding as it is. A refusal that cannot be decompressed counts by its status."""
        coding = response.headers.get("content-encoding", "identity").lower()
        if coding not in ("identity", "gzip", "deflate"):
            if not response.is_success:
                return b""
            raise self._failure(f"it answered in the coding {self.quoted(coding)!r}, which it was not asked for")
        decompressor = None if coding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)
        body = bytearray()
        try:
            async for chunk in response.aiter_raw():
                body += decompressor.decompress(chunk, self._most_bytes + 1 - len(body)) if decompressor else chunk
                if len(body) > self._most_bytes:
                    raise self._failure(f"it answered with more than {self._most_bytes} bytes")
        except zlib.error:
            if not response.is_success:
                return b""
            raise _TransientFault("its compressed answer cannot be unpacked") from None
        if response.is_success and decompressor and response.num_bytes_downloaded and not decompressor.eof:
            raise _TransientFault("its compressed answer breaks off")
        return bytes(body)

    def _refusal(self, status: int, retry_after: str | None, text: bytes) -> Exception:
        """The exception for a status other than success."""
        message = self.quoted(text.decode(errors="replace"))
        problem = f"it answered {status}" + (f": {message}" if any(map(str.isalnum, message)) else "")
        if status in _RETRIED or (status >= 500 and status != _NOT_IMPLEMENTED):
            return _TransientFault(problem, retry_after_s(retry_after, time.time()) or 0.0, status)
        self._breaker.worked()  # the server is up, since it refuses
        if status in (401, 403):
            # The message may contain a part of the key.
            return self._failure(f"it answered {status}: its key is missing, wrong, or not for this", status)
        if 300 <= status < 400:
            return self._failure(f"it answered {status}: redirects are not followed; check its address", status)
        return self._failure(problem, status)

    def _json(self, answer: "_Answer") -> Json:
        """Parse an answer as JSON. If that fails, the fault quotes the content type and the start of the answer."""
        try:
            return parse_lenient(answer.text)
        except InvalidJson:
            parts = (answer.headers.get("content-type", ""), answer.text.decode(errors="replace"))
            quote = ": ".join(filter(None, map(self.quoted, parts)))
            raise _TransientFault("its answer is not JSON" + (f" ({quote})" if quote else "")) from None

    def _object(self, answer: "_Answer") -> JsonObject:
        """Parse an answer as a JSON object. Raises the server's error if a proxy sends it with the status 200."""
        row = self._checked(self._json(answer), answer)
        if not isinstance(row, dict):
            raise _TransientFault("its answer is JSON, but no object")
        return row

    def _checked(self, value: Json, answer: "_Answer", results: Sequence[str] = ()) -> Json:
        """Return the JSON of an answer, or raise the error in it (`error_in`)."""
        row = value
        if isinstance(value, list) and len(value) == 1 and isinstance(item := value[0], dict) and item.get("error"):
            row = item  # Gemini sends errors in a list
        if not isinstance(row, dict) or (error := error_in(row, results)) is None:
            return value
        message, status = error
        if status is not None:
            raise self._refusal(status, answer.headers.get("retry-after"), message.encode())
        quote = self.quoted(message)
        raise self._failure(f"it answered: {quote}" if quote else "it answered with an error")

    def _failure(self, problem: str, status: int | None = None) -> HttpFailure:
        return HttpFailure(f"{self._name}: {problem}", status)

    def quoted(self, text: str) -> str:
        """The start of a server's or library's message on one line, without the key. Empty if quotes are off."""
        if not self._quotes:
            return ""
        if self._key is not None:
            text = text.replace(self._key, "…")  # before truncating, which could leave half of the key
        return " ".join(text.split())[:_QUOTED]

    def _wait_s(self, attempt: int) -> float:
        """Exponential backoff with jitter, in seconds."""
        # The exponent is bounded, since floats end at 2¹⁰²³.
        longest = min(self.patience.first_wait_s * 2.0 ** min(attempt - 1, 64), self.patience.longest_wait_s)
        return longest * self._rng.uniform(0.5, 1.0)


def _redacted(answer: bytes, headers: Sequence[str]) -> bytes:
    """Replace the secrets of these headers by asterisks. In JSON, the slashes of a secret may be escaped."""
    for header in headers:
        secret = header.rpartition(" ")[2]  # after `Bearer`
        for form in dict.fromkeys((secret, secret.replace("/", "\\/"))) if len(secret) >= _LEAST_KEY else ():
            answer = answer.replace(form.encode(), b"*" * len(form))
    return answer


def read_key(variable: str, what: str = "key") -> str:
    """Read a key from an environment variable. Raises `SettingError` if it is missing or not printable ASCII."""
    key = os.environ.get(variable, "").strip()
    if not (key and key.isascii() and key.isprintable()):
        raise SettingError(f"the environment variable {variable} holds no {what} (printable ASCII); put it in")
    return key


def retry_after_s(header: str | None, now: float) -> float | None:
    """Parse a Retry-After header, a number of seconds or a date, to seconds; `None` for anything else."""
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        date = email.utils.parsedate_to_datetime(header)
        return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now)
    except (ValueError, OverflowError):
        return None


_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Process id → the event loop of its calls. A fork does not inherit the thread of its parent."""
_starting = threading.Lock()


def _loop_of_calls() -> asyncio.AbstractEventLoop:
    with _starting:
        if (loop := _loops.get(os.getpid())) is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name=_THREAD, daemon=True).start()
        return loop


def _wait_for(future: "Future[T]") -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C while waiting
        raise


def _end(loop: asyncio.AbstractEventLoop, clients: "Sequence[httpx.AsyncClient]", calls: "set[Future[object]]") -> None:
    """Cancel the calls and close the connections. The garbage collector may call this in any thread."""

    async def close() -> None:
        for client in clients:
            await client.aclose()

    for call in list(calls):
        call.cancel()
    closed = asyncio.run_coroutine_threadsafe(close(), loop)
    if threading.current_thread().name != _THREAD:
        with suppress(TimeoutError):
            closed.result(5.0)
