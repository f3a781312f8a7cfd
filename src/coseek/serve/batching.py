"""Batching: the queries of several requests become one search. One thread searches; requests wait in its queue.

Requests arrive and are answered in the event loop's thread. The search thread takes its next batch by itself, so that
it never waits for the event loop while there is work.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from coseek.core.errors import RetrieverError, UserError
from coseek.data.passage import Hit
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.serve.connection import Leaving
from coseek.serve.contract import RefusedRequest
from coseek.serve.logs import print_bug
from coseek.serve.worker import Worker

ECHO = 0.25
"""Share of a search's duration for which the next one waits for the clients just answered to ask again."""
ECHO_MOST_S = 0.005


@dataclass(slots=True, eq=False)
class SearchJob:
    """The queries of one request."""

    retriever: Retriever
    queries: Sequence[QueryLike]
    k: int
    done: "asyncio.Future[None]"
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
    left: bool = False
    """Whether the client has gone."""

    def leave(self) -> None:
        """Called in the event loop when the client goes."""
        self.left = True
        if not self.done.done():
            self.done.set_result(None)


Piece: TypeAlias = tuple[SearchJob, Sequence[QueryLike]]
"""A job, and those of its queries that one search takes."""


class Batcher(Worker):
    """One thread, one search at a time, over any number of retrievers."""

    def __init__(self, batch: int, queue: int, wait_s: float = 0.0, most_wait_s: float = math.inf) -> None:
        super().__init__("coseek-search")
        self.batch = batch
        self.queue = queue
        self.most_wait_s = most_wait_s
        self.wait_s = wait_s
        self.faults = 0
        """Requests that failed in a retriever."""
        self._groups: OrderedDict[tuple[int, int], deque[SearchJob]] = OrderedDict()
        """Waiting jobs by (retriever, k); only jobs of one group can be searched together. The first group is next."""
        self._waiting = 0
        self._wanted = 1
        """The search thread is woken once so many queries wait."""
        self._per_query_s = self._turn_s = 0.0
        self._ended, self._searched, self._took_s = -math.inf, 0, 0.0

    @property
    def waiting(self) -> int:
        """Queries in the queue."""
        return self._waiting

    async def search(
        self, retriever: Retriever, queries: Sequence[QueryLike], k: int, leaving: Leaving | None = None
    ) -> SearchJob:
        """Queue the queries and wait for their hits. Raises `RefusedRequest` (503) when the queue is full, or when
        others wait and these queries are expected to take longer than `most_wait_s` beside them; and where the client
        leaves, when no search begins that was for it alone."""
        job = SearchJob(retriever, queries, k, asyncio.get_running_loop().create_future())
        with self._changed:
            too_long = self._waiting > 0 and self._expected_s(retriever, len(queries), k) > self.most_wait_s
            if self._waiting + len(queries) > self.queue or too_long:
                raise RefusedRequest(503, f"{self._waiting} queries are waiting already; retry later", self._patience())
            self._groups.setdefault((id(retriever), k), deque()).append(job)
            self._waiting += len(queries)
            if self._waiting >= self._wanted:
                self._changed.notify()
        told = set[Callable[[], object]]() if leaving is None else leaving
        told.add(job.leave)
        try:
            await job.done
        finally:
            told.discard(job.leave)
            self._drop_rest(job)
        if job.left:
            raise RefusedRequest(499, "the client has gone")
        return job

    def _expected_s(self, retriever: Retriever, queries: int, k: int) -> float:
        """Seconds until so many queries are searched: in turns of their group, each shared equally among its requests,
        between turns of the other groups."""
        group = (id(retriever), k)
        beside = sum(min(queries, len(job.queries) - job.taken) for job in self._groups.get(group, ()))
        turns = math.ceil((queries + beside) / self.batch)
        return turns * len({*self._groups, group}) * self._turn_s

    def _patience(self) -> int:
        """Seconds until the current queue is about done."""
        return min(60, max(1, math.ceil(self._waiting * self._per_query_s)))

    def _work(self) -> None:
        while True:
            pieces = self._next()
            if not pieces:
                return
            self._wake(self._searched_pieces(pieces))

    def _next(self) -> list[Piece]:
        """Wait for the next batch; empty when closed."""
        with self._changed:
            while True:
                self._wanted = 1
                while not self._waiting:
                    if self._closed:
                        return []
                    self._changed.wait()
                self._gather()
                if self._waiting:  # else all clients have gone meanwhile
                    return self._take()

    def _gather(self) -> None:
        """Wait a little for more queries: clients that were answered together mostly ask again together."""
        now = time.perf_counter()
        first = next(iter(self._groups.values()))[0].arrived
        echo_until = self._ended + min(ECHO * self._took_s, ECHO_MOST_S)
        self._wanted, until = min(self._searched, self.batch), echo_until
        if self.wait_s and first + self.wait_s > echo_until:
            self._wanted, until = self.batch, first + self.wait_s
        while self._waiting < self._wanted and now < until and not self._closed:
            self._changed.wait(until - now)
            now = time.perf_counter()

    def _take(self) -> list[Piece]:
        """Take a batch of the next group, shared equally among its requests."""
        key, jobs = self._groups.popitem(last=False)
        members = list(islice(jobs, self.batch))
        pieces: list[Piece] = []
        now = time.perf_counter()
        for job, share in zip(
            members, shares([len(job.queries) - job.taken for job in members], self.batch), strict=True
        ):
            pieces.append((job, job.queries[job.taken : job.taken + share]))
            job.began = job.began or now
            job.taken += share
            self._waiting -= share
        self._keep(key, jobs)
        return [piece for piece in pieces if piece[1]]

    def _keep(self, key: tuple[int, int], jobs: deque[SearchJob]) -> None:
        """Put what is left of a group behind the others."""
        left = deque(job for job in jobs if job.taken < len(job.queries))
        if left:
            self._groups[key] = left

    def _searched_pieces(self, pieces: list[Piece]) -> list[SearchJob]:
        """Search a batch; returns the jobs that are finished by it."""
        began = time.perf_counter()
        size = sum(len(queries) for _, queries in pieces)
        if not self._together(pieces):
            for piece in pieces:
                self._alone(piece)
        self._ended, self._searched = time.perf_counter(), size
        self._took_s = self._ended - began
        self._per_query_s = 0.8 * self._per_query_s + 0.2 * self._took_s / size
        self._turn_s = 0.9 * self._turn_s + 0.1 * self._took_s
        for job, _ in pieces:
            job.ended, job.batch = self._ended, max(job.batch, size)
        return [job for job, _ in pieces if job.fault or len(job.lists) == len(job.queries)]

    def _together(self, pieces: list[Piece]) -> bool:
        """Search for several requests at once; false if that failed, whichever request caused it."""
        if len(pieces) == 1:
            return False
        try:
            self._fill(pieces)
        except Exception:  # noqa: BLE001 (the request that causes it fails again alone, and is told)
            return False
        return True

    def _alone(self, piece: Piece) -> None:
        """Search for one request, and record its failure."""
        job = piece[0]
        try:
            self._fill([piece])
        except (RetrieverError, UserError) as error:  # a corpus that changed below an index is the user's to mend
            job.fault = error if isinstance(error, RetrieverError) else RetrieverError(str(error))
        except Exception as error:  # noqa: BLE001 (a bug of a retriever fails its request and not the service)
            print_bug()
            job.fault = error
        if job.fault is not None:
            self.faults += 1
            self._drop_rest(job)

    def _drop_rest(self, job: SearchJob) -> None:
        """Drop the unsearched queries of a request that failed, or that nobody waits for."""
        if job.taken == len(job.queries):
            return
        with self._changed:
            left = len(job.queries) - job.taken
            if left:
                job.taken = len(job.queries)
                self._waiting -= left
                key = (id(job.retriever), job.k)
                self._keep(key, self._groups.pop(key))

    def _fill(self, pieces: list[Piece]) -> None:
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
