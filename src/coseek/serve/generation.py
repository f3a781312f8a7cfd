"""Writing: the rows of many requests in one sampler. One thread writes; requests join while others are written.

A row stays in the sampler after its text is done, so that a request which goes on with it (an agent's next turn) does
not have it read again; the one unused for the longest makes room.
"""

import asyncio
import itertools
import math
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coseek.data.question import Question
from coseek.models.model import EpisodeState, Request, Turn
from coseek.serve.contract import RefusedRequest
from coseek.serve.worker import Worker

if TYPE_CHECKING:
    from coseek.models.sampler import Sampler

STRETCH = 4
"""Tokens a row between two looks at the queue: joining late costs little, looking costs less."""
MOST_KINDS = 8
"""Samplers at once: each kind of draw has its own."""
_NOBODY = EpisodeState(Question("served", ""))


@dataclass(frozen=True, slots=True)
class SamplingKind:
    """How tokens are drawn, and what ends a text. Rows of one kind are written together."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A text that is wanted."""

    ids: tuple[int, ...]
    max_tokens: int
    seed: int
    kind: SamplingKind


@dataclass(slots=True, eq=False)
class GenerationJob:
    """An order on its way."""

    order: GenerationRequest
    done: "asyncio.Future[None]"
    arrived: float = field(default_factory=time.perf_counter)
    turn: Turn | None = None
    fault: Exception | None = None
    """A bug that the sampler met."""
    reused: int = 0
    """Tokens of the prompt that had been read before."""


class _Room:
    """The sampler of one kind, the jobs it writes, and the rows it keeps."""

    def __init__(self, sampler: "Sampler") -> None:
        self.sampler = sampler
        self.jobs: dict[int, GenerationJob] = {}
        self.kept: dict[int, tuple[int, ...]] = {}
        """Row → all that it has read and written; the first was used longest ago."""

    def take(self, key: int, job: GenerationJob) -> None:
        """Go on with a kept row, or open one."""
        order = job.order
        known = self._longest_kept(order.ids)
        if known is None:
            self.jobs[key] = job
            self.sampler.start(Request(key, order.ids, order.max_tokens, order.seed, _NOBODY))
        else:
            job.reused = len(self.kept.pop(known))
            self.jobs[known] = job
            told = order.ids[job.reused :]
            self.sampler.extend(Request(known, told, order.max_tokens, order.seed, _NOBODY))

    def keep(self, turn: Turn) -> GenerationJob:
        """The job that a turn ends; its row stays, unless it failed."""
        job = self.jobs.pop(turn.key)
        job.turn = turn
        if turn.ids and not turn.fault:
            self.kept[turn.key] = job.order.ids + turn.ids
        else:
            self.sampler.close(turn.key)
        return job

    def forget_oldest(self) -> None:
        key = next(iter(self.kept))
        del self.kept[key]
        self.sampler.close(key)

    def drop_cancelled(self) -> None:
        """Rows whose clients have gone."""
        for key in [key for key, job in self.jobs.items() if job.done.cancelled()]:
            del self.jobs[key]
            self.sampler.close(key)

    def _longest_kept(self, ids: tuple[int, ...]) -> int | None:
        fitting = [(len(row), key) for key, row in self.kept.items() if ids[: len(row)] == row]
        return max(fitting)[1] if fitting else None


class GenerationWorker(Worker):
    """Takes orders in the event loop, and has them written in its thread."""

    def __init__(self, open_sampler: Callable[[SamplingKind], "Sampler"], max_rows: int, queue: int) -> None:
        super().__init__("coseek-write")
        self.max_rows, self.queue = max_rows, queue
        self.faults = 0
        self.reused_tokens = 0
        """Tokens of prompts that had been read before."""
        self.written_tokens = 0
        self._open_sampler = open_sampler
        self._rooms: dict[SamplingKind, _Room] = {}
        self._keys = itertools.count()
        self._waiting: deque[GenerationJob] = deque()
        self._running = 0
        self._per_job_s = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Texts being written."""
        return self._running

    async def write(self, orders: list[GenerationRequest]) -> list[GenerationJob]:
        """Wait for the texts of one request. `Refused` with 503 when the queue is full.

        Cancelled, it takes the orders back.
        """
        loop = asyncio.get_running_loop()
        jobs = [GenerationJob(order, loop.create_future()) for order in orders]
        with self._changed:
            if len(self._waiting) + len(jobs) > self.queue:
                wait_s = min(60, max(1, math.ceil(len(self._waiting) * self._per_job_s)))
                raise RefusedRequest(503, f"{len(self._waiting)} texts are waited for already; come back later", wait_s)
            self._waiting += jobs
            self._changed.notify()
        try:
            for job in jobs:
                await job.done
        finally:
            for job in jobs:
                job.done.cancel()
        return jobs

    def _work(self) -> None:
        while self._admit():
            for kind in list(self._rooms):
                if self._rooms[kind].jobs:
                    self._tell(self._written(kind))

    def _admit(self) -> bool:
        """Wait for work and take up what there is room for; false when closed and done."""
        with self._changed:
            while not self._waiting and not self._running:
                if self._closed:
                    return False
                self._changed.wait()
            arrived = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.max_rows - self._running))]
        for room in self._rooms.values():
            room.drop_cancelled()
        for place, job in enumerate(arrived):
            if job.done.cancelled():
                continue
            if not self._taken(job):
                with self._changed:  # first come, first served: nobody passes one who waits for a sampler
                    self._waiting.extendleft(reversed(arrived[place:]))
                break
        self._running = sum(len(room.jobs) for room in self._rooms.values())
        return True

    def _taken(self, job: GenerationJob) -> bool:
        """Give a job to the sampler of its kind; false when all samplers are busy with other kinds."""
        kind = job.order.kind
        try:
            room = self._rooms.get(kind)
            if room is None:
                idle = next((old for old, other in self._rooms.items() if not other.jobs), None)
                if len(self._rooms) >= MOST_KINDS:
                    if idle is None:
                        return False
                    del self._rooms[idle]
                room = self._rooms[kind] = _Room(self._open_sampler(kind))
            else:
                self._rooms[kind] = self._rooms.pop(kind)  # the one unused for the longest stands first
            while len(room.jobs) + len(room.kept) >= self.max_rows and room.kept:
                room.forget_oldest()
            room.take(next(self._keys), job)
            self.reused_tokens += job.reused
        except Exception as error:  # noqa: BLE001 (a bug fails its request and not the service)
            self._broken(kind, error, [job])
        return True

    def _written(self, kind: SamplingKind) -> list[GenerationJob]:
        """Write a stretch in one room; the jobs that are finished now."""
        room = self._rooms[kind]
        try:
            return [room.keep(turn) for turn in room.sampler.step(STRETCH)]
        except Exception as error:  # noqa: BLE001 (the same)
            self._broken(kind, error, [])
            return []

    def _broken(self, kind: SamplingKind, error: Exception, jobs: list[GenerationJob]) -> None:
        """A sampler that met a bug is put away, and its jobs with it."""
        traceback.print_exc(file=sys.stderr)
        room = self._rooms.pop(kind, None)
        lost = [*jobs, *(room.jobs.values() if room is not None else ())]
        for job in lost:
            job.fault = error
        self._tell(list(dict.fromkeys(lost)))

    def _tell(self, jobs: list[GenerationJob]) -> None:
        now = time.perf_counter()
        for job in jobs:
            self.faults += job.fault is not None or (job.turn is not None and bool(job.turn.fault))
            self.written_tokens += len(job.turn.ids) if job.turn is not None else 0
            self._per_job_s = 0.9 * self._per_job_s + 0.1 * (now - job.arrived) / max(1, self._running)
        self._running = sum(len(room.jobs) for room in self._rooms.values())
        self._wake(jobs)
