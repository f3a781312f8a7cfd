"""Remote: a client of a retriever behind HTTP: another coseek (`coseek serve retriever`) or any `/retrieve` server.

Transient faults are retried with growing pauses; then the search is a `RetrieverError`. A token comes from the
environment and appears in no message.
"""

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, cast
from urllib.parse import quote

from pydantic import Field

from coseek.core.errors import RetrieverError
from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, parse_base_url, read_key
from coseek.core.settings import Settings
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext, require_library
from coseek.retrieval.query import Query, QueryLike, as_queries
from coseek.retrieval.responses import parse_response
from coseek.retrieval.views import View, render_view

_NO_CARD = frozenset({400, 403, 404, 405, 422, 501})
"""Statuses of servers without `/info`."""
_MOST_AT_ONCE = 1024
"""Concurrent requests over all threads; each search has its own limit."""
_MOST_BYTES = 2**30
"""The longest answer in bytes; thousands of passages per query are long."""


class RemoteRetrieverSettings(Settings):
    """The server, its dialect, and the retries."""

    url: str
    """The server's URL, with or without `/retrieve` at its end."""
    index: str | None = None
    """The name of the index, on a server with several."""
    dialect: Literal["coseek", "search-r1", "single"] = "coseek"
    """`coseek` also sends the query's context; `search-r1` sends a list of strings; `single` one `query` per
    request."""
    view: View = "query"
    """The view that is sent as a string. With `query`, a coseek server may apply its own view."""
    token_env: str | None = None
    """The environment variable with the server's token."""
    max_queries: int = Field(default=256, ge=1)
    """Queries per request; more are split over several requests."""
    concurrency: int = Field(default=4, ge=1)
    """Concurrent requests per search."""
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
        self.settings = settings
        self._base = parse_base_url(settings.url, ("/retrieve",))
        if settings.index is not None:
            self._base += f"/{quote(settings.index, safe='')}"
        self._name = f"{self._base}/retrieve"
        self._identity: str | None = None
        token = read_key(settings.token_env, "token")
        self._calls = HttpClient(self._base, _patience(settings), token, rng, name=self._name, most_bytes=_MOST_BYTES)

    @property
    def identity(self) -> str:
        """A digest of the address and of the identity in the server's `/info`, if it has one."""
        if self._identity is None:
            parts = (self.name, self._base, self.settings.dialect, self.settings.view)
            self._identity = digest_of(*parts, self._served())
        return self._identity

    def seen(self, query: QueryLike) -> str:
        """What is sent: the view's string, or query and context as JSON if the server reads the context."""
        context = self._context(query)
        if context is None:
            return render_view(self.settings.view, query)
        return json.dumps(Query.of(query).to_json(), ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Up to `k` passages per query; blank queries are not sent."""
        queries = as_queries(queries, k)
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
        self._calls.close()

    def _ask_all(self, parts: list[list[QueryLike]], k: int) -> list[list[list[Hit]]]:
        """Send requests concurrently; answers in order. The first fault cancels the rest."""
        if len(parts) < 2:
            return [self._ask(part, k) for part in parts]
        pool = ThreadPoolExecutor(min(self.settings.concurrency, len(parts)), "coseek-remote")
        try:
            return list(pool.map(lambda part: self._ask(part, k), parts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _ask(self, queries: list[QueryLike], k: int) -> list[list[Hit]]:
        try:
            text = self._calls.fetch("POST", "/retrieve", self._body(queries, k))
            return parse_response(parse_lenient(text), len(queries), k)
        except HttpFailure as error:
            raise RetrieverError(str(error)) from None
        except ValueError as error:
            said = self._calls.quoted(str(error))
            raise RetrieverError(f"{self._name}: its answer cannot be understood: {said}") from None

    def _body(self, queries: list[QueryLike], k: int) -> JsonObject:
        texts = [render_view(self.settings.view, query) for query in queries]
        if self.settings.dialect == "single":
            return {"query": texts[0], "topk": k, "return_scores": True}
        body: JsonObject = {"queries": cast(Json, texts), "topk": k, "return_scores": True}
        contexts = [self._context(query) for query in queries]
        return body | {"contexts": cast(Json, contexts)} if any(contexts) else body

    def _context(self, query: QueryLike) -> JsonObject | None:
        """The context of a query; `None` if it is empty or the server does not read it."""
        if isinstance(query, str) or self.settings.dialect != "coseek" or self.settings.view != "query":
            return None
        if not (query.question or query.reasoning or query.history):
            return None
        return {key: value for key, value in query.to_json().items() if key != "text"}

    def _served(self) -> str:
        """The index's identity from `/info`; empty if the server has none."""
        if self.settings.dialect != "coseek":
            return ""
        try:
            card = parse_lenient(self._calls.fetch("GET", "/info"))
        except HttpFailure as error:
            if error.status in _NO_CARD:
                return ""
            raise RetrieverError(str(error)) from None
        except InvalidJson:
            return ""
        return str(card.get("identity", "")) if isinstance(card, dict) else ""


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


def open(settings: RemoteRetrieverSettings, opening: OpenContext) -> RemoteRetriever:
    """Create the client; nothing is sent before the first search."""
    require_library("httpx", "a remote retriever", "remote")
    return RemoteRetriever(settings)
