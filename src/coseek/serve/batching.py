"""Batching: searches the queries of several requests together, in one thread; requests wait in a queue."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from coseek.core.errors import RetrieverError, UserError
from coseek.data.passage import Hit
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.serve.service import RefusedRequest, WorkThread, print_bug

FOLLOW_UP = 0.25
"""Share of a search's duration for which the next search waits for new requests of the clients just answered."""
FOLLOW_UP_MOST_S = 0.005


@dataclass(slots=True, eq=False)
class SearchJob:
    """The queries of one request."""

    retriever: Retriever
    queries: Sequence[QueryLike]
    k: int
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: float = field(default_factory=time.perf_counter)
    lists: list[list[Hit]] = field(default_factory=list)
    fault: Exception | None = None
    """The retriever's failure: a `RetrieverError`, or a bug."""
    taken: int = 0
    """Number of queries that were passed to the retriever."""
    began: float = 0.0
    ended: float = 0.0
    batch: int = 0
    """Number of queries of the largest search that included it."""

    @property
    def left(self) -> int:
        """Number of queries that wait."""
        return len(self.queries) - self.taken


BatchItem: TypeAlias = tuple[SearchJob, Sequence[QueryLike]]
"""A job, and its queries in one search."""


class Batcher:
    """One search at a time, over any number of retrievers. Its methods are called in the event loop."""

    def __init__(self, thread: WorkThread, batch: int, queue: int, most_wait_s: float | None = None) -> None:
        self.batch, self.queue, self.most_wait_s = batch, queue, most_wait_s
        self.faults = 0
        """Requests that failed in a retriever."""
        self.waiting = 0
        """Queries in the queue."""
        self._thread = thread
        self._jobs: deque[SearchJob] = deque()
        """Jobs with queries that wait; the first is next."""
        self._more = asyncio.Event()
        self._searching: asyncio.Task[None] | None = None
        self._per_query_s = 0.0
        self._ended, self._searched, self._took_s = -math.inf, 0, 0.0

    async def search(self, retriever: Retriever, queries: Sequence[QueryLike], k: int) -> SearchJob:
        """Queue the queries and wait for their hits. Raises `RefusedRequest` (503) if the queue is full, or if no
        search has begun after `most_wait_s`. Cancellation drops the queries that were not searched yet."""
        if self.waiting + len(queries) > self.queue:
            raise self._full_refusal()
        job = SearchJob(retriever, queries, k)
        self._jobs.append(job)
        self.waiting += len(queries)
        self._more.set()
        if self._searching is None or self._searching.done():
            self._searching = asyncio.ensure_future(self._search_until_empty())
        try:
            async with asyncio.timeout(self.most_wait_s):
                await job.begun.wait()
            await job.done.wait()
        except TimeoutError:
            raise self._full_refusal() from None
        finally:
            self._drop_rest(job)
        return job

    def _full_refusal(self) -> RefusedRequest:
        """The refusal, with the estimated seconds until the current queue is done."""
        retry_s = min(60, max(1, math.ceil(self.waiting * self._per_query_s)))
        return RefusedRequest(503, f"{self.waiting} queries are waiting already; retry later", retry_s)

    async def _search_until_empty(self) -> None:
        """Search one batch after the other until nothing waits."""
        while self.waiting:
            await self._gather()
            if not self.waiting:  # all clients have disconnected meanwhile
                return
            items = self._take()
            started_s = time.perf_counter()
            await self._thread.run(partial(_search_all, items))
            self._finish(items, started_s)

    async def _gather(self) -> None:
        """Wait briefly for more queries: clients that were answered together usually ask again together."""
        target = min(self._searched, self.batch)
        deadline = self._ended + min(FOLLOW_UP * self._took_s, FOLLOW_UP_MOST_S)
        while self.waiting < target and (left_s := deadline - time.perf_counter()) > 0:
            self._more.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), left_s)

    def _take(self) -> list[BatchItem]:
        """Take a batch of the first job and others with its retriever and k. The rest of a job moves to the end, so
        that a large request does not keep small ones waiting."""
        first, room, unfinished_jobs = self._jobs[0], self.batch, list[SearchJob]()
        items: list[BatchItem] = []
        for _ in range(len(self._jobs)):
            job = self._jobs.popleft()
            if not room or job.retriever is not first.retriever or job.k != first.k:
                self._jobs.append(job)
                continue
            queries = job.queries[job.taken : job.taken + room]
            items.append((job, queries))
            job.began = job.began or time.perf_counter()
            job.begun.set()
            job.taken += len(queries)
            room -= len(queries)
            unfinished_jobs += [job] if job.left else []
        self._jobs.extend(unfinished_jobs)
        self.waiting -= self.batch - room
        return items

    def _finish(self, items: list[BatchItem], started_s: float) -> None:
        """Count a search, and complete the requests that it finished."""
        self._ended, self._searched = time.perf_counter(), sum(len(queries) for _, queries in items)
        self._took_s = self._ended - started_s
        self._per_query_s = 0.8 * self._per_query_s + 0.2 * self._took_s / self._searched
        for job, _ in items:
            job.ended, job.batch = self._ended, max(job.batch, self._searched)
            self.faults += job.fault is not None
            if job.fault is not None or len(job.lists) == len(job.queries):
                self._drop_rest(job)
                job.done.set()

    def _drop_rest(self, job: SearchJob) -> None:
        """Drop the unsearched queries of a request that failed or was cancelled."""
        if job.left:
            self.waiting -= job.left
            job.taken = len(job.queries)
            self._jobs.remove(job)


def _search_all(items: list[BatchItem]) -> None:
    """Search for several requests at once, or one by one if that fails. Called in the thread."""
    if len(items) > 1:
        with suppress(Exception):  # the request that causes it fails again alone
            _search_items(items)
            return
    for item in items:
        try:
            _search_items([item])
        except (RetrieverError, UserError) as error:  # a user error: such as a corpus that changed after indexing
            item[0].fault = error if isinstance(error, RetrieverError) else RetrieverError(str(error))
        except Exception as error:  # noqa: BLE001 (a bug of a retriever fails its request and not the service)
            print_bug()
            item[0].fault = error


def _search_items(items: list[BatchItem]) -> None:
    """Make one search for all items, which share retriever and k."""
    first = items[0][0]
    all_queries = [query for _, queries in items for query in queries]
    hit_lists = first.retriever.search(all_queries, first.k)
    if len(hit_lists) != len(all_queries):
        raise RetrieverError(f"{first.retriever.name} gave {len(hit_lists)} lists for {len(all_queries)} queries")
    start = 0
    for job, queries in items:
        job.lists += hit_lists[start : start + len(queries)]
        start += len(queries)
