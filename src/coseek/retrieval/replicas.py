"""Replicas: one index behind several servers. A batch is dealt to all of them; a server that fails is left alone for a
while, and its queries are asked elsewhere. Servers of different indexes are refused, so hits depend on no server.
"""

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Protocol

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.data.passage import Hit
from coseek.retrieval.context_fields import ContextFields
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import Retriever

log = logging.getLogger(__name__)

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
    def follow(self) -> None: ...
    def renew(self) -> None: ...
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
        self._follows = False
        self._left_out: set[int] = set()

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

    def follow(self) -> None:
        """Go on where the servers replace their index."""
        self._follows = True
        for server in self.servers:
            server.follow()

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
        """Refuse a server of another index than the first one's. While servers that are followed get a new index one by
        one, those that have it not yet have failed."""
        server = self.servers[place]
        if server.served != self._first.served and self._follows:
            server.renew()
            self._first.renew()
            vars(self).pop("_first", None)  # it may be away to get the new one; another thread may have seen it, too
        first = self._first
        if server.served == first.served:
            self._left_out.discard(place)
            return
        said = (
            f"server {place + 1} of {len(self.servers)} searches another index than server "
            f"{self.servers.index(first) + 1}; serve one index at all of them"
        )
        if not self._follows:
            raise SettingError(said)
        if place not in self._left_out:
            self._left_out.add(place)
            log.warning("%s (until then it is left out)", said)
        raise RetrieverError(said)
