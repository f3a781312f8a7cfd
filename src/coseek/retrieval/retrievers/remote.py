"""Remote: a client of a retriever behind HTTP: another coseek (`coseek serve retriever`) or any `/retrieve` server.

The `/info` of a coseek server states what it reads of a query's context, and its limits: nothing else is sent, and
larger batches become several requests. A request that is refused as too large (413) is halved. Every answer of such a
server names the index that it came from: an answer of another index than the first is a `RetrieverError`.

Transient faults are retried with growing pauses; then the search is a `RetrieverError`. A token comes from the
environment and appears in no message.
"""

import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Annotated, Literal, Protocol, TypeAlias, cast
from urllib.parse import quote

from pydantic import Field

from coseek.core.connections import parse_base_url
from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, read_key
from coseek.core.settings import Settings, VariableName
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext, require_library
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries, fitted
from coseek.retrieval.responses import IDENTITY, parse_response
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import View, find_view, render_view

# Replicas: one index behind several servers. A batch is dealt to all of them; a server that fails is left alone for a
# while, and its queries are asked elsewhere. Servers of different indexes are refused, so hits depend on no server.

REST_S = 30.0
"""Seconds for which a server that failed is asked last."""


class Replica(Retriever, Protocol):
    """A thread-safe client of one server."""

    @property
    def served(self) -> str:
        """The identity that the server states; empty where it states none."""
        ...

    @property
    def reads(self) -> ContextFields: ...
    @property
    def concurrency(self) -> int: ...
    def close(self) -> None: ...


class Replicas:
    """A retriever over at least one replica. Thread-safe."""

    corpus = None

    def __init__(self, servers: Sequence[Replica]) -> None:
        self.name = servers[0].name
        self.servers = servers
        self.moved = 0
        """Parts of batches that were asked again at another server."""
        self._rests_until = [0.0] * len(servers)
        self._searches = itertools.count()
        self._counting = threading.Lock()

    @property
    def identity(self) -> str:
        told = self._first.served
        return digest_of(self.name, "replicas", *([told] if told else [server.identity for server in self.servers]))

    @property
    def reads(self) -> ContextFields:
        return self._first.reads

    @property
    def concurrency(self) -> int:
        """Searches that may be under way at once."""
        return sum(server.concurrency for server in self.servers)

    def seen(self, query: QueryLike) -> str:
        return self._first.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Raises `RetrieverError` for queries that every server failed at."""
        queries = as_queries(queries, k)
        order = self._order()
        awake = [place for place in order if self._rests_until[place] <= time.monotonic()] or order[:1]
        count = min(len(awake), len(queries))
        if count < 2:
            return self._ask(order, queries, k)
        borders = [len(queries) * part // count for part in range(count + 1)]
        with ThreadPoolExecutor(count, "coseek-replicas") as pool:
            asked = [
                pool.submit(self._ask, [place, *(other for other in order if other != place)], queries[first:last], k)
                for place, (first, last) in zip(awake, itertools.pairwise(borders), strict=False)
            ]
            return [hits for part in asked for hits in part.result()]

    def close(self) -> None:
        """Close the connections."""
        for server in self.servers:
            server.close()

    @cached_property
    def _first(self) -> Replica:
        """The first server that says what it serves."""
        said = RetrieverError("no server is left")
        for server in self.servers:
            try:
                _ = server.served
            except RetrieverError as error:
                said = error
            else:
                return server
        raise said

    def _order(self) -> list[int]:
        """All servers, those that rest last, and each search's first another one."""
        count, first, now = len(self.servers), next(self._searches), time.monotonic()
        turned = [(first + place) % count for place in range(count)]
        return sorted(turned, key=lambda place: self._rests_until[place] > now)

    def _ask(self, order: Sequence[int], queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The hits of the first server in this order that answers."""
        for place in order:
            server = self.servers[place]
            try:
                self._check(place)
                return server.search(queries, k)
            except RetrieverError as error:
                said = error
                self._rests_until[place] = time.monotonic() + REST_S
                with self._counting:
                    self.moved += place != order[-1]
        raise said

    def _check(self, place: int) -> None:
        """Refuse a server of another index than the first one's."""
        if self.servers[place].served != self._first.served:
            raise SettingError(
                f"server {place + 1} of {len(self.servers)} searches another index than server "
                f"{self.servers.index(self._first) + 1}; serve one index at all of them"
            )


_NO_CARD = frozenset({400, 403, 404, 405, 422, 501})
"""Statuses of servers without `/info`."""
_MOST_AT_ONCE = 1024
"""Concurrent requests over all threads; each search has its own limit."""
_MOST_BYTES = 2**30
"""The longest answer in bytes; thousands of passages per query are long."""
_TOO_LARGE = 413
_BESIDE_BYTES = 128
"""Bytes of a request beside its queries, and of a query beside its text and context, at most."""

_Sent: TypeAlias = tuple[str, JsonObject | None]
"""A query's text, and its context."""


class RemoteRetrieverSettings(Settings):
    """The server, its dialect, and the retries."""

    url: str | Annotated[list[str], Field(min_length=1)]
    """The server's URL, with or without `/retrieve` at its end; a list for replicas of one index, which share the
    queries, and of which each may die."""
    index: str | None = None
    """The name of the index, on a server with several."""
    dialect: Literal["coseek", "search-r1", "single"] = "coseek"
    """`coseek` also sends the query's context; `search-r1` sends a list of strings; `single` one `query` per
    request."""
    view: View = "query"
    """The view that is sent as a string. With `query`, a coseek server may apply its own view."""
    token_env: VariableName | None = None
    """The environment variable with the server's token."""
    max_queries: int = Field(default=256, ge=1)
    """Queries per request; more are split over several requests."""
    concurrency: int = Field(default=4, ge=1)
    """Concurrent requests per search."""
    searches: int = Field(default=32, ge=1)
    """Searches under way at once, where an agent behind a server or a label maker makes several."""
    connect_s: float = Field(default=5.0, gt=0)
    """Seconds to wait for a connection."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds to wait for the complete answer."""
    retries: int = Field(default=3, ge=0)
    """Retries after a transient fault."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Seconds before the first retry; doubled before each further one, less a random part of up to half."""
    max_backoff_s: float = Field(default=20.0, ge=0)
    """The longest pause, even if `Retry-After` asks for more."""
    break_after: int = Field(default=5, ge=1)
    """Consecutive failed requests after which searches fail at once."""
    cool_down_s: float = Field(default=30.0, ge=0)
    """Seconds until one request probes whether the server is back."""


class RemoteRetriever:
    """The client of a `/retrieve` server. Thread-safe."""

    name = "remote"
    corpus = None

    def __init__(self, settings: RemoteRetrieverSettings, rng: random.Random | None = None) -> None:
        """`rng` draws the random part of pauses; no result depends on it."""
        assert isinstance(settings.url, str)
        self.settings = settings
        self._base = parse_base_url(settings.url, ("/retrieve",))
        if settings.index is not None:
            self._base += f"/{quote(settings.index, safe='')}"
        self._name = f"{self._base}/retrieve"
        token = read_key(settings.token_env, "token")
        self._calls = HttpClient(self._base, _patience(settings), token, rng, name=self._name, most_bytes=_MOST_BYTES)

    @property
    def identity(self) -> str:
        """A digest of the address and of the identity in the server's `/info`, if it has one."""
        parts = (self.name, self._base, self.settings.dialect, self.settings.view)
        return digest_of(*parts, self.served)

    @property
    def served(self) -> str:
        """The identity that the server states; empty where it states none."""
        return str(self._info.get("identity", ""))

    @property
    def reads(self) -> ContextFields:
        """What is sent of a query's context: what the server reads, or what the client's own view reads."""
        if self.settings.dialect == "coseek" and self.settings.view == "query":
            return ContextFields.from_json(self._info.get("reads"))
        return find_view(self.settings.view).fields

    @property
    def concurrency(self) -> int:
        """Searches that may be under way at once."""
        return self.settings.searches

    def seen(self, query: QueryLike) -> str:
        """What is sent: the view's string, or query and context as JSON if the server reads the context."""
        text, context = self._sent(query)
        return text if context is None else json.dumps({"text": text, **context}, ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Up to `k` passages per query; blank queries are not sent."""
        queries = as_queries(queries, k)
        asked = [place for place, query in enumerate(queries) if Query.of(query).text.strip()]
        parts = self._parts([self._sent(queries[place]) for place in asked], k) if asked else []
        lists: list[list[Hit]] = [[] for _ in queries]
        found = (hits for part in self._ask_all(parts, k) for hits in part)
        for place, hits in zip(asked, found, strict=True):
            lists[place] = hits
        return lists

    def close(self) -> None:
        """Close the connections."""
        self._calls.close()

    def _parts(self, sent: list[_Sent], k: int) -> list[list[_Sent]]:
        """Requests within the server's limits. A query that is too large alone has a request of its own."""
        most = min(self.settings.max_queries, self._limit("max_queries"), max(1, self._limit("max_hits") // k))
        most = 1 if self.settings.dialect == "single" else most
        room = self._limit("max_body_bytes") - _BESIDE_BYTES
        parts: list[list[_Sent]] = [[]]
        used = 0
        for one in sent:
            size = len(json.dumps(one)) + _BESIDE_BYTES
            if parts[-1] and (len(parts[-1]) == most or used + size > room):
                parts.append([])
                used = 0
            parts[-1].append(one)
            used += size
        return parts

    def _limit(self, name: str) -> int:
        """A limit of the server; a very large number if it states none."""
        limits = self._info.get("limits")
        found = limits.get(name) if isinstance(limits, dict) else None
        return found if isinstance(found, int) and found > 0 else sys.maxsize

    def _ask_all(self, parts: list[list[_Sent]], k: int) -> list[list[list[Hit]]]:
        """Send requests concurrently; answers in order. The first fault cancels the rest."""
        if len(parts) < 2:
            return [self._ask(part, k) for part in parts]
        pool = ThreadPoolExecutor(min(self.settings.concurrency, len(parts)), "coseek-remote")
        try:
            return list(pool.map(lambda part: self._ask(part, k), parts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _ask(self, queries: list[_Sent], k: int) -> list[list[Hit]]:
        try:
            answer, index = self._calls.fetch_json_with_header("POST", "/retrieve", self._body(queries, k), IDENTITY)
            self._check(index)
            return parse_response(answer, len(queries), k)
        except HttpFailure as error:
            if error.status == _TOO_LARGE and (half := len(queries) // 2):
                return self._ask(queries[:half], k) + self._ask(queries[half:], k)
            raise RetrieverError(str(error)) from None
        except ValueError as error:
            said = self._calls.quoted(str(error))
            raise RetrieverError(f"{self._name}: its answer cannot be understood: {said}") from None

    def _check(self, index: str | None) -> None:
        """Refuse an answer of another index than that of `_info`: one identity is recorded for a run."""
        if index is not None and self.served and index != self.served:
            raise RetrieverError(
                f"the server at {self._name} switched to another index during this run; start a new run"
            )

    def _body(self, queries: list[_Sent], k: int) -> JsonObject:
        texts = [text for text, _ in queries]
        if self.settings.dialect == "single":
            return {"query": texts[0], "topk": k, "return_scores": True}
        body: JsonObject = {"queries": cast(Json, texts), "topk": k, "return_scores": True}
        contexts = [context for _, context in queries]
        return body | {"contexts": cast(Json, contexts)} if any(contexts) else body

    def _sent(self, query: QueryLike) -> _Sent:
        """The text and the context that are sent of a query; no context where nothing of it is read."""
        text = render_view(self.settings.view, query)
        if isinstance(query, str) or self.settings.dialect != "coseek" or self.settings.view != "query":
            return text, None
        if not query.context_chars:
            return text, None
        read = fitted(self.reads.of(query), self._limit("max_context_chars"))
        return text, {key: value for key, value in read.to_json().items() if value and key != "text"} or None

    @cached_property
    def _info(self) -> JsonObject:
        """The server's `/info`, read once; empty if it has none."""
        if self.settings.dialect != "coseek":
            return {}
        try:
            card = parse_lenient(self._calls.fetch("GET", "/info"))
        except HttpFailure as error:
            if error.status in _NO_CARD:
                return {}
            raise RetrieverError(str(error)) from None
        except InvalidJson:
            return {}
        return card if isinstance(card, dict) else {}


def _patience(settings: RemoteRetrieverSettings) -> HttpSettings:
    return HttpSettings(
        concurrency=_MOST_AT_ONCE,
        attempts=settings.retries + 1,
        first_wait_s=settings.backoff_s,
        longest_wait_s=settings.max_backoff_s,
        insistent=True,
        **settings.model_dump(include={"connect_s", "timeout_s", "break_after", "cool_down_s"}),
    )


SETTINGS = RemoteRetrieverSettings


def open(settings: RemoteRetrieverSettings, opening: OpenContext) -> RemoteRetriever | Replicas:
    """Create the client; nothing is sent before the first search."""
    require_library("httpx", "a remote retriever", "remote")
    if isinstance(settings.url, str):
        return RemoteRetriever(settings)
    return Replicas([RemoteRetriever(settings.model_copy(update={"url": url})) for url in settings.url])
