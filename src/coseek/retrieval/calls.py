"""Calls: one HTTP request to a service that we pay for. Retried when that may help, and counted.

The key is in the request's headers and nowhere else: not in an address, an error or a log. What a service wrote into
an error is not repeated either, since some repeat the key there. Redirects are not followed: they would take the key
along.
"""

import email.utils
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from pydantic import Field

from coseek.data.errors import RetrieverError
from coseek.data.files import JsonObject
from coseek.data.settings import Settings
from coseek.retrieval.engine import Ask

if TYPE_CHECKING:
    import httpx

MOST_BYTES = 8_000_000
"""Longest answer of a service that is read."""


class Retries(Settings):
    """How long a service that does not answer is asked again."""

    attempts: int = Field(default=4, ge=1)
    """Calls in all. Only what may pass is asked again: no connection, no answer in time, statuses 429 and 5xx."""
    first_wait_s: float = Field(default=0.5, ge=0)
    """Before the second call; twice as long before each further one, less a random part of up to one half."""
    longest_wait_s: float = Field(default=30.0, ge=0)
    """No wait is longer. A service that asks for a longer one (Retry-After) is not asked again."""


@dataclass
class CallStats:
    """What the calls of a retriever came to since it was opened."""

    calls: int = 0
    """Requests sent, retries included."""
    retries: int = 0
    """Requests that were sent again."""
    answered: int = 0
    """Requests that were answered, hence paid for."""


@dataclass
class Service:
    """One service, asked through one client."""

    name: str
    url: str
    client: "httpx.Client"
    retries: Retries
    rng: random.Random
    """Parts the waits of processes that failed at the same moment; no result depends on it."""
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    stats: CallStats = field(default_factory=CallStats)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def ask(self, ask: Ask) -> JsonObject:
        """The answer as a JSON object; a `RetrieverError` when there is none."""
        fault = ""
        for attempt in range(self.retries.attempts):
            self._count(calls=1, retries=int(attempt > 0))
            fault, asked_to_wait_s, answer = self._once(ask)
            if answer is not None:
                return answer
            wait_s = self._wait_s(attempt) if asked_to_wait_s is None else asked_to_wait_s
            if wait_s > self.retries.longest_wait_s:
                raise RetrieverError(f"{self.name} {fault} and asks to wait {wait_s:.0f} s, which is too long")
            if attempt + 1 < self.retries.attempts:
                self.sleep(wait_s)
        raise RetrieverError(f"{self.name} {fault}, {self.retries.attempts} times in a row")

    def _once(self, ask: Ask) -> tuple[str, float | None, JsonObject | None]:
        """(what went wrong that may pass, the wait that the service asks for, the answer)."""
        import httpx

        try:
            with self.client.stream(
                ask.method, self.url, params=dict(ask.parameters), headers=dict(ask.headers), json=ask.body
            ) as response:
                status = response.status_code
                if status == 429 or status >= 500:
                    return f"answered {status}", _retry_after_s(response.headers.get("Retry-After"), self.now()), None
                if not response.is_success:
                    raise RetrieverError(f"{self.name} answered {status}; {_advice(status)}")
                self._count(answered=1)  # and paid for, whatever is in it
                return "", None, self._read(response)
        except httpx.TimeoutException:
            return "did not answer in time", None, None
        except httpx.TransportError as error:
            return f"could not be reached ({type(error).__name__})", None, None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RetrieverError(f"{self.name} could not be asked ({type(error).__name__})") from None

    def _read(self, response: "httpx.Response") -> JsonObject:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MOST_BYTES:
                raise RetrieverError(f"{self.name} answered with more than {MOST_BYTES} bytes")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise RetrieverError(f"{self.name} answered with something that is not JSON") from None
        if not isinstance(answer, dict):
            raise RetrieverError(f"{self.name} answered with JSON that is no object")
        return cast(JsonObject, answer)

    def _count(self, calls: int = 0, retries: int = 0, answered: int = 0) -> None:
        with self._lock:  # several threads ask at once
            self.stats.calls += calls
            self.stats.retries += retries
            self.stats.answered += answered

    def _wait_s(self, attempt: int) -> float:
        longest = min(self.retries.first_wait_s * 2.0**attempt, self.retries.longest_wait_s)
        return longest * self.rng.uniform(0.5, 1.0)


def _retry_after_s(said: str | None, now: float) -> float | None:
    """Seconds from a Retry-After header: a number of seconds, or a date; `None` when it is neither."""
    if said is None:
        return None
    if said.strip().isascii() and said.strip().isdigit():
        return float(said.strip()[:9])
    try:
        date = email.utils.parsedate_to_datetime(said)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - now)


def _advice(status: int) -> str:
    if status in (401, 403):
        return "its key is wrong, or not for this"
    if status == 402:
        return "its credit is used up"
    if 300 <= status < 400:
        return "redirects are not followed, since they would take the key along; check its url"
    return "check its url and parameters"
