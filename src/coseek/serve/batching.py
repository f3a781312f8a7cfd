"""Batching: the queries of several requests become one search, in one thread; requests wait in its queue."""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeAlias

from coseek.core.errors import RetrieverError, UserError
from coseek.data.passage import Hit
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.serve.limits import RefusedRequest, print_bug
from coseek.serve.running import WorkThread

ECHO = 0.25
"""Share of a search's duration for which the next one waits for the clients just answered to ask again."""
ECHO_MOST_S = 0.005


@dataclass(slots=True, eq=False)
class SearchJob:
    """The queries of one request."""

    retriever: Retriever
    queries: Sequence[QueryLike]
    k: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: float = field(default_factory=time.perf_counter)
    lists: list[list[Hit]] = field(default_factory=list)
    fault: Exception | None = None
    """The retriever's failure: a `RetrieverError`, or a bug."""
    taken: int = 0
    """How many queries were passed to the retriever."""
    began: float = 0.0
    ended: float = 0.0
    batch: int = 0
    """Queries of the largest search that it was part of."""

    @property
    def left(self) -> int:
        """Queries that wait."""
        return len(self.queries) - self.taken


Piece: TypeAlias = tuple[SearchJob, Sequence[QueryLike]]
"""A job, and those of its queries that one search takes."""


class Batcher:
    """One search at a time, over any number of retrievers. Its methods are called in the event loop."""

    def __init__(
        self, thread: WorkThread, batch: int, queue: int, wait_s: float = 0.0, most_wait_s: float = math.inf
    ) -> None:
        self.batch, self.queue, self.wait_s, self.most_wait_s = batch, queue, wait_s, most_wait_s
        self.faults = 0
        """Requests that failed in a retriever."""
        self.waiting = 0
        """Queries in the queue."""
        self._thread = thread
        self._groups: OrderedDict[tuple[int, int], deque[SearchJob]] = OrderedDict()
        """Waiting jobs by (retriever, k); only jobs of one group can be searched together. The first group is next."""
        self._more = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._per_query_s = self._turn_s = 0.0
        self._ended, self._searched, self._took_s = -math.inf, 0, 0.0

    async def search(self, retriever: Retriever, queries: Sequence[QueryLike], k: int) -> SearchJob:
        """Queue the queries and wait for their hits. Raises `RefusedRequest` (503) when the queue is full, or when
        others wait and these queries are expected to take longer than `most_wait_s` beside them. Cancelled, it drops
        what was not searched yet."""
        too_long = self.waiting > 0 and self._expected_s(retriever, len(queries), k) > self.most_wait_s
        if self.waiting + len(queries) > self.queue or too_long:
            raise RefusedRequest(503, f"{self.waiting} queries are waiting already; retry later", self._patience())
        job = SearchJob(retriever, queries, k)
        self._groups.setdefault((id(retriever), k), deque()).append(job)
        self.waiting += len(queries)
        self._more.set()
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())
        try:
            await job.done.wait()
        finally:
            self._drop_rest(job)
        return job

    def _expected_s(self, retriever: Retriever, queries: int, k: int) -> float:
        """Seconds until this many queries are searched: in turns of a group, each shared equally among its requests,
        between turns of the other groups."""
        group = (id(retriever), k)
        beside = sum(min(queries, job.left) for job in self._groups.get(group, ()))
        turns = math.ceil((queries + beside) / self.batch)
        return turns * len({*self._groups, group}) * self._turn_s

    def _patience(self) -> int:
        """Seconds until the current queue is about done."""
        return min(60, max(1, math.ceil(self.waiting * self._per_query_s)))

    async def _work(self) -> None:
        """Search one batch after the other until nothing waits."""
        while self.waiting:
            await self._gather()
            if not self.waiting:  # all clients have gone meanwhile
                return
            pieces = self._take()
            began = time.perf_counter()
            await self._thread.run(partial(_search_all, pieces))
            self._note(pieces, began)

    async def _gather(self) -> None:
        """Wait a little for more queries: clients that were answered together mostly ask again together."""
        first = next(iter(self._groups.values()))[0].arrived
        wanted, until = min(self._searched, self.batch), self._ended + min(ECHO * self._took_s, ECHO_MOST_S)
        if self.wait_s and first + self.wait_s > until:
            wanted, until = self.batch, first + self.wait_s
        while self.waiting < wanted and (left_s := until - time.perf_counter()) > 0:
            self._more.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), left_s)

    def _take(self) -> list[Piece]:
        """Take a batch of the next group, shared equally among its requests."""
        key, jobs = self._groups.popitem(last=False)
        members = list(islice(jobs, self.batch))
        pieces: list[Piece] = []
        now = time.perf_counter()
        for job, share in zip(members, shares([job.left for job in members], self.batch), strict=True):
            pieces.append((job, job.queries[job.taken : job.taken + share]))
            job.began = job.began or now
            job.taken += share
            self.waiting -= share
        self._keep(key, jobs)
        return [piece for piece in pieces if piece[1]]

    def _keep(self, key: tuple[int, int], jobs: deque[SearchJob]) -> None:
        """Put what is left of a group behind the others."""
        if left := deque(job for job in jobs if job.left):
            self._groups[key] = left

    def _note(self, pieces: list[Piece], began: float) -> None:
        """Count a search, and let the requests that are finished by it go on."""
        self._ended, self._searched = time.perf_counter(), sum(len(queries) for _, queries in pieces)
        self._took_s = self._ended - began
        self._per_query_s = 0.8 * self._per_query_s + 0.2 * self._took_s / self._searched
        self._turn_s = 0.9 * self._turn_s + 0.1 * self._took_s
        for job, _ in pieces:
            job.ended, job.batch = self._ended, max(job.batch, self._searched)
            self.faults += job.fault is not None
            if job.fault is not None or len(job.lists) == len(job.queries):
                self._drop_rest(job)
                job.done.set()

    def _drop_rest(self, job: SearchJob) -> None:
        """Drop the unsearched queries of a request that failed, or that nobody waits for."""
        if job.left:
            self.waiting -= job.left
            job.taken = len(job.queries)
            key = (id(job.retriever), job.k)
            self._keep(key, self._groups.pop(key))


def _search_all(pieces: list[Piece]) -> None:
    """Search for several requests at once; one by one if that fails, whichever request caused it. Called in the
    thread."""
    if len(pieces) > 1:
        with suppress(Exception):  # the request that causes it fails again alone, and is told
            _fill(pieces)
            return
    for piece in pieces:
        try:
            _fill([piece])
        except (RetrieverError, UserError) as error:  # a corpus that changed below an index is the user's to mend
            piece[0].fault = error if isinstance(error, RetrieverError) else RetrieverError(str(error))
        except Exception as error:  # noqa: BLE001 (a bug of a retriever fails its request and not the service)
            print_bug()
            piece[0].fault = error


def _fill(pieces: list[Piece]) -> None:
    """Make one search for all pieces, which share retriever and k."""
    first = pieces[0][0]
    queries = [query for _, part in pieces for query in part]
    found = first.retriever.search(queries, first.k)
    if len(found) != len(queries):
        raise RetrieverError(f"{first.retriever.name} gave {len(found)} lists for {len(queries)} queries")
    start = 0
    for job, part in pieces:
        job.lists += found[start : start + len(part)]
        start += len(part)


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Share `room` out (max-min fair): no one gets more than wanted, or less than another unless it wants less."""
    given = [0] * len(wanted)
    hungry = [place for place, want in enumerate(wanted) if want]
    while room and hungry:
        each = max(1, room // len(hungry))
        for place in hungry[:room]:
            more = min(each, wanted[place] - given[place], room)
            given[place] += more
            room -= more
        hungry = [place for place in hungry if given[place] < wanted[place]]
    return given
