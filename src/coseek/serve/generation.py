"""Generation: continuous batching of many requests in one sampler, in one thread.

A row stays in the sampler after its text is done, so that a request that continues it (an agent's next turn) does not
have to read it again. The least recently used row makes room.
"""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coseek.data.question import Question
from coseek.models.model import EpisodeState, Request, Turn
from coseek.serve.contract import RefusedRequest
from coseek.serve.logs import print_bug
from coseek.serve.worker import Worker

if TYPE_CHECKING:
    from coseek.models.sampler import Sampler

STRETCH = 4
"""Tokens of a row between two looks at the queue."""
MOST_KINDS = 8
"""Samplers open at once; each kind of sampling has its own."""
HALF_LIFE_S = 20.0
"""Seconds of work after which a measured speed counts half."""
_NOBODY = EpisodeState(Question("served", ""))


@dataclass(frozen=True, slots=True)
class SamplingKind:
    """Sampling parameters and stop strings. Rows of one kind share a sampler."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One text to generate."""

    ids: tuple[int, ...]
    max_tokens: int
    seed: int
    kind: SamplingKind


@dataclass(slots=True, eq=False)
class GenerationJob:
    """A request in the queue or in a sampler."""

    request: GenerationRequest
    done: "asyncio.Future[None]"
    unread: int
    """Prompt tokens that are to be read for it, expected: those of an equal prompt in one HTTP request count once."""
    turn: Turn | None = None
    fault: Exception | None = None
    """The exception of a sampler with a bug."""
    reused: int = 0
    """Prompt tokens that a kept row had read before."""
    version: int | str | None = None
    """The version of the weights that generated it, if one was named."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightChange:
    """A change of the weights, which waits until no text is under way."""

    make: Callable[[], None]
    version: int | str | None
    done: "asyncio.Future[None]"


class Pace:
    """The speed of a service in tokens a second, read and generated alike, and the tokens of its usual text."""

    def __init__(self) -> None:
        self._tokens = self._seconds = self._usual = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count `tokens` that took `seconds`."""
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._tokens, self._seconds = kept * self._tokens + tokens, kept * self._seconds + seconds

    def add_text(self, tokens: int) -> None:
        """Count a text of so many tokens that came to its end."""
        self._usual += 0.1 * (tokens - self._usual)

    def seconds(self, jobs: Iterable[GenerationJob]) -> float:
        """The expected time for these jobs; 0 before the first measured one."""
        if not self._tokens:
            return 0.0
        tokens = sum(job.unread + min(job.request.max_tokens, self._usual) for job in jobs)
        return tokens * self._seconds / self._tokens


class _SamplerRows:
    """The sampler of one kind, its jobs under way, and the finished rows that it keeps."""

    def __init__(self, sampler: "Sampler") -> None:
        self.sampler = sampler
        self.jobs: dict[int, GenerationJob] = {}
        self.kept: dict[int, tuple[int, ...]] = {}
        """Row → all its tokens; least recently used first."""

    def take(self, key: int, job: GenerationJob) -> None:
        """Continue a kept row, or open a new one."""
        request = job.request
        known = self._longest_kept(request.ids)
        if known is None:
            self.jobs[key] = job
            self.sampler.start(Request(key, request.ids, request.max_tokens, request.seed, _NOBODY))
        else:
            job.reused = len(self.kept.pop(known))
            job.unread = max(0, job.unread - job.reused)
            self.jobs[known] = job
            told = request.ids[job.reused :]
            self.sampler.extend(Request(known, told, request.max_tokens, request.seed, _NOBODY))

    def keep(self, turn: Turn) -> GenerationJob:
        """Finish the job of a turn; its row is kept, unless it failed."""
        job = self.jobs.pop(turn.key)
        job.turn = turn
        if turn.ids and not turn.fault:
            self.kept[turn.key] = job.request.ids + turn.ids
        else:
            self.sampler.close(turn.key)
        return job

    def forget_oldest(self) -> None:
        key = next(iter(self.kept))
        del self.kept[key]
        self.sampler.close(key)

    def drop_cancelled(self) -> None:
        """Close the rows whose clients have disconnected."""
        for key in [key for key, job in self.jobs.items() if job.done.cancelled()]:
            del self.jobs[key]
            self.sampler.close(key)

    def _longest_kept(self, ids: tuple[int, ...]) -> int | None:
        fitting = [(len(row), key) for key, row in self.kept.items() if ids[: len(row)] == row]
        return max(fitting)[1] if fitting else None


class GenerationWorker(Worker):
    """Takes requests in the event loop, and generates in its thread."""

    def __init__(
        self, open_sampler: Callable[[SamplingKind], "Sampler"], max_rows: int, queue: int, most_wait_s: float
    ) -> None:
        super().__init__("coseek-write")
        self.max_rows, self.queue, self.most_wait_s = max_rows, queue, most_wait_s
        self.faults = 0
        self.reused_tokens = 0
        """Prompt tokens that kept rows had read before."""
        self.written_tokens = 0
        self._open_sampler = open_sampler
        self._samplers: dict[SamplingKind, _SamplerRows] = {}
        self._keys = itertools.count()
        self.version: int | str | None = None
        """The version of the weights, as it was named when they were loaded."""
        self._waiting: deque[GenerationJob] = deque()
        self._changes: deque[WeightChange] = deque()
        self._running = 0
        self._pace = Pace()
        self._under_way_s = 0.0
        """Expected time for the texts under way."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Texts under way."""
        return self._running

    async def write(self, requests: list[GenerationRequest]) -> list[GenerationJob]:
        """Queue the texts of one HTTP request and wait for them. Raises `RefusedRequest` (503) when the queue is full,
        or when others are before them and all are expected to take longer than `most_wait_s`.

        When cancelled, it withdraws them.
        """
        loop = asyncio.get_running_loop()
        read: set[tuple[int, ...]] = set()
        jobs = []
        for request in requests:
            jobs.append(GenerationJob(request, loop.create_future(), 0 if request.ids in read else len(request.ids)))
            read.add(request.ids)
        with self._changed:
            before_s = self._under_way_s + self._pace.seconds(self._waiting)
            too_long = before_s > 0 and before_s + self._pace.seconds(jobs) > self.most_wait_s
            if len(self._waiting) + len(jobs) > self.queue or too_long:
                again_s = min(60, max(1, math.ceil(before_s)))
                busy = len(self._waiting) + self._running
                raise RefusedRequest(503, f"{busy} texts are under way or waiting already; retry later", again_s)
            self._waiting += jobs
            self._changed.notify()
        try:
            for job in jobs:
                await job.done
        except asyncio.CancelledError:
            for job in jobs:
                job.done.cancel()
            with self._changed:  # else they would keep others out of the queue
                self._waiting = deque(job for job in self._waiting if not job.done.cancelled())
            raise
        return jobs

    async def change_weights(self, make: Callable[[], None], version: int | str | None) -> None:
        """Call `make` in the thread once the texts under way are done; those that wait begin after it."""
        change = WeightChange(make, version, asyncio.get_running_loop().create_future())
        with self._changed:
            self._changes.append(change)
            self._changed.notify()
        await change.done

    def _work(self) -> None:
        while self._admit():
            for kind in list(self._samplers):
                if self._samplers[kind].jobs:
                    self._tell(self._written(kind))

    def _admit(self) -> bool:
        """Wait for work, and start what there is room for; false when closed and done."""
        with self._changed:
            while not self._waiting and not self._running and not self._changes:
                if self._closed:
                    return False
                self._changed.wait()
            changes, room = [], self.max_rows - self._running
            if self._changes:  # nothing new begins before them
                room = 0
                if not self._running:
                    changes, self._changes = [*self._changes], deque()
            arrived = [self._waiting.popleft() for _ in range(min(len(self._waiting), room))]
        for change in changes:
            self._samplers.clear()  # kept rows were read with the weights before
            change.make()
            self.version = change.version
        self._wake(changes)
        for rows in self._samplers.values():
            rows.drop_cancelled()
        for place, job in enumerate(arrived):
            if job.done.cancelled():
                continue
            if not self._taken(job):
                with self._changed:  # first come, first served, also for a job that waits for a sampler
                    self._waiting.extendleft(reversed(arrived[place:]))
                break
        self._count_running()
        return True

    def _count_running(self) -> None:
        under_way = [job for rows in self._samplers.values() for job in rows.jobs.values()]
        self._running, self._under_way_s = len(under_way), self._pace.seconds(under_way)

    def _taken(self, job: GenerationJob) -> bool:
        """Give a job to the sampler of its kind; false when all samplers are busy with other kinds."""
        kind = job.request.kind
        try:
            rows = self._samplers.get(kind)
            if rows is None:
                idle = next((old for old, other in self._samplers.items() if not other.jobs), None)
                if len(self._samplers) >= MOST_KINDS:
                    if idle is None:
                        return False
                    del self._samplers[idle]
                rows = self._samplers[kind] = _SamplerRows(self._open_sampler(kind))
            else:
                self._samplers[kind] = self._samplers.pop(kind)  # least recently used first
            while len(rows.jobs) + len(rows.kept) >= self.max_rows and rows.kept:
                rows.forget_oldest()
            job.version = self.version
            rows.take(next(self._keys), job)
            self.reused_tokens += job.reused
        except Exception as error:  # noqa: BLE001 (a bug fails its request and not the service)
            self._broken(kind, error, [job])
        return True

    def _written(self, kind: SamplingKind) -> list[GenerationJob]:
        """Generate `STRETCH` tokens a row with one sampler; returns the jobs that are finished by it."""
        rows = self._samplers[kind]
        read, began = rows.sampler.tokens_read, time.perf_counter()
        try:
            turns = rows.sampler.step(STRETCH)
            tokens = rows.sampler.tokens_read - read + STRETCH * len(rows.jobs)
            self._pace.add(tokens, time.perf_counter() - began)
            for job in rows.jobs.values():
                job.unread = 0
            return [rows.keep(turn) for turn in turns]
        except Exception as error:  # noqa: BLE001 (the same)
            self._broken(kind, error, [])
            return []

    def _broken(self, kind: SamplingKind, error: Exception, jobs: list[GenerationJob]) -> None:
        """Discard a sampler that raised, and fail its jobs."""
        print_bug()
        rows = self._samplers.pop(kind, None)
        lost = [*jobs, *(rows.jobs.values() if rows is not None else ())]
        for job in lost:
            job.fault = error
        self._tell(list(dict.fromkeys(lost)))

    def _tell(self, jobs: list[GenerationJob]) -> None:
        for job in jobs:
            self.faults += job.fault is not None or (job.turn is not None and bool(job.turn.fault))
            if job.turn is not None:
                self.written_tokens += len(job.turn.ids)
                self._pace.add_text(len(job.turn.ids))
        self._count_running()
        self._wake(jobs)
