"""Remote: a client of a retriever behind HTTP: another coseek (`coseek serve retriever`) or any `/retrieve` server.

The `/info` of a coseek server states what it reads of a query's context, and its limits: nothing else is sent, and
larger batches become several requests. A request that is refused as too large (413) is halved. Every answer of such a
server names the index that it came from: an answer of another index than the first is a `RetrieverError`.

Transient faults are retried with growing pauses; then the search raises `RetrieverError`. A token is read from the
environment and appears in no message.
"""

import itertools
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias, cast
from urllib.parse import quote

from pydantic import Field

from coseek.core.connections import parse_base_url
from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, read_key
from coseek.core.settings import Settings, VariableName
from coseek.core.strict_json import InvalidJson, fault_in, is_deep, parse_lenient
from coseek.data.passage import DEEPEST_META, TEXTS, Hit, Passage, told_apart
from coseek.retrieval.factory import OpenContext, require_library
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries, fitted
from coseek.retrieval.ranking import rank_hits
from coseek.retrieval.views import View, find_view, render_view

_NO_INFO = frozenset({400, 403, 404, 405, 422, 501})
"""Statuses of servers without `/info`."""
_MAX_CONCURRENCY = 1024
"""Concurrent requests over all threads; each search has its own limit."""
_MAX_BYTES = 2**30
"""The longest response in bytes; thousands of passages per query are long."""
_TOO_LARGE = 413
_OVERHEAD_BYTES = 128
"""Maximum bytes of a request besides its queries, and of a query besides its text and context."""

_QueryPayload: TypeAlias = tuple[str, JsonObject | None]
"""A query's text, and its context."""


class RemoteRetrieverSettings(Settings):
    """The server, its dialect, and the retries."""

    url: str | Annotated[list[str], Field(min_length=1)]
    """The server's URL, with or without `/retrieve` at its end; a list for replicas of one index, which share the
    queries; a search needs one of them."""
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
    """Concurrent searches, where an agent behind a server or a label maker makes several."""
    connect_s: float = Field(default=5.0, gt=0)
    """Seconds to wait for a connection."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds to wait for the complete answer."""
    retries: int = Field(default=3, ge=0)
    """Retries after a transient fault."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Seconds before the first retry; doubled before each further one, minus a random share of up to half."""
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

    def __init__(self, settings: RemoteRetrieverSettings) -> None:
        assert isinstance(settings.url, str)
        self.settings = settings
        self._base = parse_base_url(settings.url, ("/retrieve",))
        if settings.index is not None:
            self._base += f"/{quote(settings.index, safe='')}"
        self._name = f"{self._base}/retrieve"
        token = read_key(settings.token_env, "token") if settings.token_env else None
        self._calls = HttpClient(self._base, _http_settings(settings), token, name=self._name, most_bytes=_MAX_BYTES)

    @property
    def identity(self) -> str:
        """A digest of the address and of the identity in the server's `/info`, if it has one."""
        return digest_of(self.name, self._base, self.settings.dialect, self.settings.view, self.served)

    @property
    def served(self) -> str:
        """The identity that the server states; empty where it states none."""
        return str(self._info.get("identity", ""))

    @property
    def reads(self) -> ContextFields:
        """The context fields that are sent: those that the server reads, or those of the client's own view."""
        if self.settings.dialect == "coseek" and self.settings.view == "query":
            return ContextFields.from_json(self._info.get("reads"))
        return find_view(self.settings.view).fields

    @property
    def concurrency(self) -> int:
        """The maximum number of concurrent searches."""
        return self.settings.searches

    def seen(self, query: QueryLike) -> str:
        """The text that is sent: the view's string, or query and context as JSON if the server reads the context."""
        text, context = self._payload(query)
        return text if context is None else json.dumps({"text": text, **context}, ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Up to `k` passages per query; blank queries are not sent."""
        queries = as_queries(queries, k)
        sent_indices = [index for index, query in enumerate(queries) if Query.of(query).text.strip()]
        batches = self._batches([self._payload(queries[index]) for index in sent_indices], k) if sent_indices else []
        lists: list[list[Hit]] = [[] for _ in queries]
        results = (hits for batch in self._send_all(batches, k) for hits in batch)
        for index, hits in zip(sent_indices, results, strict=True):
            lists[index] = hits
        return lists

    def close(self) -> None:
        """Close the connections."""
        self._calls.close()

    def _batches(self, payloads: list[_QueryPayload], k: int) -> list[list[_QueryPayload]]:
        """Requests within the server's limits. A query that alone exceeds them is sent alone."""
        max_queries = min(self.settings.max_queries, self._limit("max_queries"), max(1, self._limit("max_hits") // k))
        max_queries = 1 if self.settings.dialect == "single" else max_queries
        max_bytes = self._limit("max_body_bytes") - _OVERHEAD_BYTES
        batches: list[list[_QueryPayload]] = [[]]
        batch_bytes = 0
        for payload in payloads:
            size = len(json.dumps(payload)) + _OVERHEAD_BYTES
            if batches[-1] and (len(batches[-1]) == max_queries or batch_bytes + size > max_bytes):
                batches.append([])
                batch_bytes = 0
            batches[-1].append(payload)
            batch_bytes += size
        return batches

    def _limit(self, name: str) -> int:
        """A limit of the server; a very large number if it states none."""
        limits = self._info.get("limits")
        limit = limits.get(name) if isinstance(limits, dict) else None
        return limit if isinstance(limit, int) and limit > 0 else sys.maxsize

    def _send_all(self, batches: list[list[_QueryPayload]], k: int) -> list[list[list[Hit]]]:
        """Send requests concurrently; returns the results in order. The first failure cancels the rest."""
        if len(batches) < 2:
            return [self._send(batch, k) for batch in batches]
        with ThreadPoolExecutor(min(self.settings.concurrency, len(batches)), "coseek-remote") as pool:
            return list(pool.map(lambda batch: self._send(batch, k), batches))

    def _send(self, batch: list[_QueryPayload], k: int) -> list[list[Hit]]:
        try:
            body = self._body(batch, k)
            answer, identity = self._calls.fetch_json_with_header("POST", "/retrieve", body, IDENTITY, RESULTS)
            self._check(identity)
            return parse_response(answer, len(batch), k)
        except HttpFailure as error:
            if error.status == _TOO_LARGE and (half_size := len(batch) // 2):
                return self._send(batch[:half_size], k) + self._send(batch[half_size:], k)
            raise RetrieverError(str(error)) from None
        except ValueError as error:
            reason = self._calls.quoted(str(error))
            raise RetrieverError(f"{self._name}: its answer cannot be understood: {reason}") from None

    def _check(self, identity: str | None) -> None:
        """Refuse a response from another index than that of `_info`: a run records one identity."""
        if identity is not None and self.served and identity != self.served:
            raise RetrieverError(
                f"the server at {self._name} switched to another index during this run; start a new run"
            )

    def _body(self, batch: list[_QueryPayload], k: int) -> JsonObject:
        texts = [text for text, _ in batch]
        if self.settings.dialect == "single":
            return {"query": texts[0], "topk": k, "return_scores": True}
        body: JsonObject = {"queries": cast(Json, texts), "topk": k, "return_scores": True}
        contexts = [context for _, context in batch]
        return body | {"contexts": cast(Json, contexts)} if any(context is not None for context in contexts) else body

    def _payload(self, query: QueryLike) -> _QueryPayload:
        """The text and the context to send; no context if the server reads none of it."""
        text = render_view(self.settings.view, query)
        if isinstance(query, str) or self.settings.dialect != "coseek" or self.settings.view != "query":
            return text, None
        if self.reads == ContextFields():
            return text, None
        context = fitted(self.reads.of(query), self._limit("max_context_chars"))
        return text, {key: value for key, value in context.to_json().items() if value and key != "text"}

    @cached_property
    def _info(self) -> JsonObject:
        """The server's `/info`, read once; empty if it has none."""
        if self.settings.dialect != "coseek":
            return {}
        try:
            info = parse_lenient(self._calls.fetch("GET", "/info"))
        except HttpFailure as error:
            if error.status in _NO_INFO:
                return {}
            raise RetrieverError(str(error)) from None
        except InvalidJson:
            return {}
        return info if isinstance(info, dict) else {}


def _http_settings(settings: RemoteRetrieverSettings) -> HttpSettings:
    return HttpSettings(
        concurrency=_MAX_CONCURRENCY,
        attempts=settings.retries + 1,
        first_wait_s=settings.backoff_s,
        longest_wait_s=settings.max_backoff_s,
        insistent=True,
        **settings.model_dump(include={"connect_s", "timeout_s", "break_after", "cool_down_s"}),
    )


# Responses: the answers of `/retrieve` servers, which differ in their layout (docs/reference/service.md).
#
#     {"result": [[{"document": {…}, "score": 1.5}, …], …]}     a list per query, with or without scores
#     {"result": [{"id": …, "title": …, "text": …}, …]}         one flat list, for a single query
#     {"result": [["\"Title\"\nbody", …], …]}                   documents as strings

IDENTITY = "x-index-identity"
"""The response header with which coseek's own servers name their index."""
RESULTS = ("result", "results")
"""The fields that may hold the lists of an answer."""
_IDS = ("id", "docid", "doc_id", "_id", "pid")
_OWN = {"title", "text", "contents"}
"""The keys of coseek's own servers, whose corpora may hold empty passages."""
_MISSING = (-1, "-1")
"""The id that faiss returns for missing hits."""


def parse_response(payload: Json, count: int, k: int) -> list[list[Hit]]:
    """The hits of each of `count` queries, at most `k` each. Raises `ValueError` for an unknown layout. The server's
    order is kept. Its scores are kept if every hit has one and they do not rise; otherwise the scores are 1/rank. A
    document without an id gets a digest of its content as id; an id that repeats in a list with another text gets a
    digest suffix."""
    lists = payload.get("result", payload.get("results")) if isinstance(payload, dict) else payload
    if not isinstance(lists, list):
        fields = [repr(name[:16]) for name in payload][:6] if isinstance(payload, dict) else []
        raise ValueError(
            f'no list under "result" (fields: {", ".join(fields) or "none"}); read it by a retriever of your own '
            "(retriever: mine.py, docs/how-to/write-a-part.md)"
        )
    if count == 1 and not (lists and isinstance(lists[0], list)):
        lists = [lists]
    if len(lists) != count:
        raise ValueError(f"{len(lists)} lists for {count} queries")
    return [_hits(rows, k) for rows in lists]


def _hits(rows: Json, k: int) -> list[Hit]:
    if rows is None:
        return []
    if not isinstance(rows, list):
        raise ValueError(f"a {type(rows).__name__} where a list of documents belongs")
    passages: dict[str, Passage] = {}
    pairs = [result for result in map(_passage_and_score, rows) if result is not None][:k]
    results = [(told_apart(passage, passages), score) for passage, score in pairs]
    scores = [score for _, score in results if score is not None]
    if len(scores) < len(results) or any(first < second for first, second in pairwise(scores)):
        return rank_hits(passage for passage, _ in results)
    return [Hit(passage, score) for (passage, _), score in zip(results, scores, strict=True)]


def _passage_and_score(row: Json) -> tuple[Passage, float | None] | None:
    """A document and its score; `None` for a missing hit."""
    if row is None or row in _MISSING:
        return None
    if isinstance(row, str):
        return _passage({"contents": row}), None
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__} where a document belongs")
    document = row.get("document", row)
    if document is None or document in _MISSING:
        return None
    if isinstance(document, str):
        document = {**row, "text": None, "contents": document}
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} where a document belongs")
    if _first_value(document, _IDS) in _MISSING:
        return None
    return _passage(document), _score(row.get("score"))


def _score(score: Json) -> float | None:
    if score is None:
        return None
    try:
        number = math.nan if isinstance(score, bool) or not isinstance(score, int | float | str) else float(score)
    except (OverflowError, ValueError):  # an integer too large for a float; words
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a score that is not a finite number: {str(score)[:40]!r}")
    return number


def _passage(document: JsonObject) -> Passage:
    texts = [name for name in TEXTS if isinstance(document.get(name), str)]
    filled_names = [name for name in texts if str(document[name]).strip()]
    meta = next((value for key in ("meta", "metadata") if isinstance(value := document.get(key), dict)), {})
    title = next((text for text in (document.get("title"), meta.get("title")) if text and isinstance(text, str)), "")
    if not filled_names and not (texts and (title or document.keys() >= _OWN)):
        raise ValueError("a document without text")
    name = (filled_names or texts)[0]
    row: JsonObject = {"id": "", "title": title}
    row |= {"text": document[name]} if name != "contents" else {}
    row |= {"contents": document["contents"]} if "contents" in texts and name in ("text", "contents") else {}
    if isinstance(url := document.get("url"), str):
        meta = {"url": url, **meta}
    if not (fault_in(meta) or is_deep(meta, DEEPEST_META)):
        row["meta"] = meta
    passage = Passage.from_json(row)
    ident = _first_value(document, _IDS)
    if ident is None:
        ident = "sha256:" + digest_of(passage.title, passage.text)[:16]
    return replace(passage, id=str(ident))


def _first_value(document: JsonObject, names: Iterable[str]) -> Json:
    """The value of the first of these keys that is present and not null."""
    return next((document[name] for name in names if document.get(name) is not None), None)


# Replicas: one index behind several servers. A batch is split over all of them. A server that fails is avoided for a
# while, and its queries are sent to another one. Servers of different indexes are refused, so that hits do not depend
# on the server.

REST_S = 30.0
"""Seconds for which a server that failed is tried last."""


class Replicas:
    """A retriever over at least one replica. Thread-safe."""

    corpus = None

    def __init__(self, servers: Sequence[RemoteRetriever]) -> None:
        self.name = servers[0].name
        self.servers = servers
        self._rests_until = [0.0] * len(servers)
        self._searches = itertools.count()

    @property
    def identity(self) -> str:
        served = self._first_server.served
        return digest_of(self.name, "replicas", *([served] if served else [server.identity for server in self.servers]))

    @property
    def reads(self) -> ContextFields:
        return self._first_server.reads

    @property
    def concurrency(self) -> int:
        """The maximum number of concurrent searches."""
        return sum(server.concurrency for server in self.servers)

    def seen(self, query: QueryLike) -> str:
        return self._first_server.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Raises `RetrieverError` for queries that failed at every server."""
        queries = as_queries(queries, k)
        order = self._order()
        available = [index for index in order if self._rests_until[index] <= time.monotonic()] or order[:1]
        count = max(1, min(len(available), len(queries)))
        bounds = [len(queries) * number // count for number in range(count + 1)]
        with ThreadPoolExecutor(count, "coseek-replicas") as pool:
            batches = [
                pool.submit(
                    self._search_in, [index, *(other for other in order if other != index)], queries[start:end], k
                )
                for index, (start, end) in zip(available, itertools.pairwise(bounds), strict=False)
            ]
            return [hits for batch in batches for hits in batch.result()]

    def close(self) -> None:
        """Close the connections."""
        for server in self.servers:
            server.close()

    @cached_property
    def _first_server(self) -> RemoteRetriever:
        """The first server that answers."""
        failure = RetrieverError("no server is left")
        for server in self.servers:
            try:
                _ = server.served
            except RetrieverError as error:
                failure = error
            else:
                return server
        raise failure

    def _order(self) -> list[int]:
        """The indices of all servers, rotated by one per search; those that failed lately are last."""
        count, first, now = len(self.servers), next(self._searches), time.monotonic()
        rotated = [(first + offset) % count for offset in range(count)]
        return sorted(rotated, key=lambda index: self._rests_until[index] > now)

    def _search_in(self, order: Sequence[int], queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The hits of the first server in this order that answers."""
        for index in order:
            try:
                self._check(index)
                return self.servers[index].search(queries, k)
            except RetrieverError as error:
                failure = error
                self._rests_until[index] = time.monotonic() + REST_S
        raise failure

    def _check(self, index: int) -> None:
        """Raise `SettingError` for a server of another index than the first one's."""
        if self.servers[index].served != self._first_server.served:
            raise SettingError(
                f"server {index + 1} of {len(self.servers)} searches another index than server "
                f"{self.servers.index(self._first_server) + 1}; serve one index at all of them"
            )


SETTINGS = RemoteRetrieverSettings


def open(settings: RemoteRetrieverSettings, opening: OpenContext) -> RemoteRetriever | Replicas:
    """Create the client; nothing is sent before the first search."""
    require_library("httpx", "a remote retriever", "remote")
    if isinstance(settings.url, str):
        return RemoteRetriever(settings)
    return Replicas([RemoteRetriever(settings.model_copy(update={"url": url})) for url in settings.url])
