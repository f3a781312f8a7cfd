"""Remote: a retriever behind HTTP. Another coseek (`coseek serve retriever`), or any server with a `/retrieve`.

A fault of the network or the server is tried again with growing pauses, and then a `RetrieverError`. A token comes
from the environment and is in no message.
"""

import ipaddress
import json
import os
import random
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import quote, urlsplit

from pydantic import Field

from coseek.data.breaker import Breaker
from coseek.data.errors import RetrieverError, SettingError
from coseek.data.files import Json, JsonObject
from coseek.data.passage import Hit
from coseek.data.settings import Settings
from coseek.retrieval.answers import read_answer
from coseek.retrieval.opening import Opening, needs
from coseek.retrieval.query import Asked, Query
from coseek.retrieval.ranking import check_k
from coseek.retrieval.retriever import digest_of
from coseek.retrieval.views import render

if TYPE_CHECKING:
    import httpx

_AGAIN = frozenset({429, 500, 502, 503, 504})
"""What a server may answer differently next time."""
_NO_CARD = frozenset({400, 403, 404, 405, 422, 501})
"""What servers that have no `/info` answer to it."""
_QUOTED = 200


class RemoteSettings(Settings):
    """Where it is, how it speaks, and how patient we are."""

    url: str
    """The address of the server, with or without `/retrieve` at its end."""
    index: str | None = None
    """The name of the index, on a server that has several."""
    dialect: Literal["coseek", "search-r1", "single"] = "coseek"
    """`coseek` sends what led to a query, too; `search-r1` sends a list of strings; `single` one `query` a request."""
    view: str = "query"
    """How a search turn becomes the string that is sent. With `query`, a server of coseek may use a view of its own."""
    token_env: str | None = None
    """The environment variable that holds the token for the server."""
    max_queries: int = Field(default=256, ge=1)
    """More queries than these are sent as several requests."""
    concurrency: int = Field(default=4, ge=1)
    """Requests under way at once."""
    connect_s: float = Field(default=5.0, gt=0)
    """Seconds to wait for a connection."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds to wait for an answer."""
    retries: int = Field(default=3, ge=0)
    """Times that a request is tried again after a fault that may pass."""
    backoff_s: float = Field(default=0.5, ge=0)
    """The n-th pause between tries is drawn from 0 to `backoff_s` · 2ⁿ seconds."""
    max_backoff_s: float = Field(default=20.0, ge=0)
    """No pause is longer, whatever the server says in `Retry-After`."""
    break_after: int = Field(default=5, ge=1)
    """After so many failed requests in a row the server is left alone, and searches fail at once."""
    cool_down_s: float = Field(default=30.0, ge=0)
    """Seconds until a single request tries whether the server is back."""


class Remote:
    """The client of a `/retrieve` server. May be used by any threads at once."""

    name = "remote"
    corpus = None

    def __init__(self, settings: RemoteSettings, rng: random.Random | None = None) -> None:
        """`rng` draws the pauses between tries; they need not repeat from run to run, hence a default."""
        import httpx

        self.settings = settings
        self._base = _base(settings)
        self._rng = rng or random.Random()
        self._breaker = Breaker(settings.break_after, settings.cool_down_s)
        self._token = _token(settings)
        self._identity: str | None = None
        self._client = httpx.Client(
            headers={} if self._token is None else {"authorization": f"Bearer {self._token}"},
            timeout=httpx.Timeout(settings.timeout_s, connect=settings.connect_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            # A proxy for the web is no way to a server on this machine.
            trust_env=not _is_local(self._base),
            # Reading certificates takes a tenth of a second, and plain HTTP needs none.
            verify=self._base.startswith("https:"),
        )
        weakref.finalize(self, self._client.close)

    @property
    def identity(self) -> str:
        """A digest of the address, and of the identity that the server gives itself in `/info`, if it does."""
        if self._identity is None:
            parts = (self.name, self._base, self.settings.dialect, self.settings.view)
            self._identity = digest_of(*parts, self._served())
        return self._identity

    def seen(self, query: Asked) -> str:
        """What is sent: the string of its view, or all that led to the query where the server may read that."""
        context = self._context(query)
        if context is None:
            return render(self.settings.view, query)
        return json.dumps(Query.of(query).to_json(), ensure_ascii=False)

    def search(self, queries: Sequence[Asked], k: int) -> list[list[Hit]]:
        """Up to `k` passages a query; nothing is asked for a query of blanks."""
        check_k(k)
        asked = [place for place, query in enumerate(queries) if Query.of(query).text.strip()]
        size = 1 if self.settings.dialect == "single" else self.settings.max_queries
        parts = [[queries[place] for place in asked[start : start + size]] for start in range(0, len(asked), size)]
        lists: list[list[Hit]] = [[] for _ in queries]
        found = (hits for part in self._ask_all(parts, k) for hits in part)
        for place, hits in zip(asked, found, strict=True):
            lists[place] = hits
        return lists

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask_all(self, parts: list[list[Asked]], k: int) -> list[list[list[Hit]]]:
        """Several requests at once, their answers in order. The first fault ends them all."""
        if len(parts) < 2:
            return [self._ask(part, k) for part in parts]
        pool = ThreadPoolExecutor(min(self.settings.concurrency, len(parts)), "coseek-remote")
        try:
            return list(pool.map(lambda part: self._ask(part, k), parts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _ask(self, queries: list[Asked], k: int) -> list[list[Hit]]:
        reply = self._patiently("POST", "retrieve", self._body(queries, k))
        if reply.status_code != 200:
            raise self._error(f"it answered {reply.status_code}{_said(reply)}")
        try:
            return read_answer(cast(Json, reply.json()), len(queries), k)
        except (ValueError, RecursionError) as error:
            raise self._error(f"its answer cannot be understood: {str(error)[:_QUOTED]}") from None

    def _body(self, queries: list[Asked], k: int) -> JsonObject:
        texts = [render(self.settings.view, query) for query in queries]
        if self.settings.dialect == "single":
            return {"query": texts[0], "topk": k, "return_scores": True}
        body: JsonObject = {"queries": cast(Json, texts), "topk": k, "return_scores": True}
        contexts = [self._context(query) for query in queries]
        return body | {"contexts": cast(Json, contexts)} if any(contexts) else body

    def _context(self, query: Asked) -> JsonObject | None:
        """What led to a query, if there is anything and the server may read it."""
        if isinstance(query, str) or self.settings.dialect != "coseek" or self.settings.view != "query":
            return None
        if not (query.question or query.reasoning or query.history):
            return None
        return {key: value for key, value in query.to_json().items() if key != "text"}

    def _served(self) -> str:
        """What `/info` says of the index's identity; empty for servers that say nothing."""
        if self.settings.dialect != "coseek":
            return ""
        reply = self._patiently("GET", "info")
        if reply.status_code in _NO_CARD:
            return ""
        if reply.status_code != 200:
            raise self._error(f"it answered {reply.status_code}{_said(reply)}")
        try:
            card = cast(Json, reply.json())
        except (ValueError, RecursionError):
            return ""
        return str(card.get("identity", "")) if isinstance(card, dict) else ""

    def _patiently(self, method: str, path: str, body: JsonObject | None = None) -> "httpx.Response":
        """Send a request until it is answered with something that will not change, or patience ends."""
        pause_s = self._breaker.wait_s()
        if pause_s:
            faults = self._breaker.faults
            raise self._error(f"it failed {faults} times in a row and is left alone for {pause_s:.0f} s more")
        for attempt in range(self.settings.retries + 1):
            found = self._once(method, path, body)
            if not isinstance(found, str) and found.status_code not in _AGAIN:
                self._breaker.worked()
                return found
            if attempt < self.settings.retries:
                time.sleep(self._pause_s(attempt, found))
        self._breaker.failed()
        fault = found if isinstance(found, str) else f"it answered {found.status_code}{_said(found)}"
        raise self._error(f"{fault} ({self.settings.retries + 1} tries)")

    def _once(self, method: str, path: str, body: JsonObject | None) -> "httpx.Response | str":
        """The answer, or what went wrong on the way."""
        import httpx

        try:
            return self._client.request(method, f"{self._base}/{path}", json=body)
        except httpx.ConnectTimeout:
            return f"no connection within {self.settings.connect_s:g} s"
        except httpx.TimeoutException:
            return f"no answer within {self.settings.timeout_s:g} s"
        except httpx.HTTPError as error:
            return str(error)[:_QUOTED] or type(error).__name__

    def _pause_s(self, attempt: int, found: "httpx.Response | str") -> float:
        """Full jitter: clients that failed together do not come back together."""
        most_s = self.settings.max_backoff_s
        # Python's floats end at 2¹⁰²³.
        drawn_s = self._rng.uniform(0, min(most_s, self.settings.backoff_s * 2.0 ** min(attempt, 64)))
        asked_s = 0.0 if isinstance(found, str) else retry_after_s(found.headers.get("retry-after", ""))
        return min(most_s, max(drawn_s, asked_s))

    def _error(self, what: str) -> RetrieverError:
        sentence = f"{self._base}/retrieve: {what}"
        return RetrieverError(sentence if self._token is None else sentence.replace(self._token, "…"))


def retry_after_s(header: str) -> float:
    """Seconds that a `Retry-After` asks for: a number, or a date. 0 when it says nothing that can be read."""
    header = header.strip()
    if header.isdecimal():
        return float(header[:9])
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _said(reply: "httpx.Response") -> str:
    """What the server said of its refusal, as a quotation."""
    text = " ".join(reply.text.split())
    return f": {text[:_QUOTED]!r}" if text else ""


def _base(settings: RemoteSettings) -> str:
    """The address in front of `/retrieve`."""
    import httpx

    try:
        url = httpx.URL(settings.url)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.userinfo:
        raise SettingError("the URL of a server must not hold a password; put a token into a variable for token_env")
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise SettingError(f"{settings.url!r} is no address of a server; write http://HOST:PORT")
    base = settings.url.rstrip("/").removesuffix("/retrieve")
    return base if settings.index is None else f"{base}/{quote(settings.index, safe='')}"


def _token(settings: RemoteSettings) -> str | None:
    if settings.token_env is None:
        return None
    token = os.environ.get(settings.token_env, "").strip()
    if not (token and token.isascii() and token.isprintable()):
        raise SettingError(
            f"the environment variable {settings.token_env} holds no token (plain printable characters); put one there"
        )
    return token


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


SETTINGS = RemoteSettings


def open(settings: RemoteSettings, opening: Opening) -> Remote:
    """A client; nothing is sent before the first search."""
    needs("httpx", "a remote retriever", "remote")
    return Remote(settings)
