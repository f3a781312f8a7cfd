"""Generation: continuous batching of many requests in one sampler, in one thread.

A row stays in the sampler after its text is done, so that a request that continues it (an agent's next turn) does not
have to read it again. The least recently used row makes room. What would have to wait too long is refused at once, or
when it has waited as long.
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
    from coseek.serve.mixed_sampler import MixedSampler

STRETCH = 4
"""Tokens of a row between two looks at the queue."""
HALF_LIFE_S = 20.0
"""Seconds of work after which a measured speed counts half."""
CAUTION = 1.5
"""By how much the expected time is stretched: speeds vary, and who is accepted waits in vain where it was too short."""
LAST_TEXTS = 128
"""Texts from whose lengths that of the next one is expected."""
LEAST_WAIT_S = 1.0
"""Seconds in which an idle service begins whatever it has accepted."""
KEPT_S = 60.0
"""Seconds after which a kept row that nobody has continued is closed."""
TRIM_S = 2.0
"""Seconds between two looks at the memory."""
_NOBODY = EpisodeState(Question("served", ""))


@dataclass(frozen=True, slots=True)
class SamplingKind:
    """Sampling parameters and stop strings. Each row may have another one."""

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

    @property
    def end(self) -> int:
        """Tokens of its row, at most."""
        return len(self.ids) + self.max_tokens


@dataclass(slots=True, eq=False)
class GenerationJob:
    """A request in the queue or in a sampler."""

    request: GenerationRequest
    done: "asyncio.Future[None]"
    unread: int
    """Prompt tokens that are to be read for it, expected: those of an equal prompt in one HTTP request count once."""
    begun: bool = False
    """Whether it has had a row."""
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
    """How long texts take: the speeds of reading and of writing, each in tokens a second, and the usual lengths."""

    def __init__(self) -> None:
        self._read, self._written = Speed(), Speed()
        self._last: tuple[tuple[int, bool], ...] = ()
        """Tokens of the last texts, and whether they were cut there. Replaced whole, since two threads read it."""
        self._expected: dict[int, float] = {}
        """Tokens that are allowed → tokens that are expected."""

    def add(self, read: int, read_s: float, written: int, written_s: float) -> None:
        """Count tokens, and the seconds that they took."""
        self._read.add(read, read_s)
        self._written.add(written, written_s)

    def add_text(self, tokens: int, most: int) -> None:
        """Count a text of so many tokens, of which `most` were allowed."""
        self._last = (*self._last[1 - LAST_TEXTS :], (tokens, tokens >= most))
        self._expected = {}

    def tokens(self, most: int) -> float:
        """The expected tokens of a text. One that was cut says nothing of where it would have ended, so it counts as
        one of `most` tokens: a text is never expected to be shorter for the short ones that others have asked for."""
        known, last = self._expected, self._last
        if not last:
            return most
        if most not in known:
            known[most] = sum(most if cut else min(most, tokens) for tokens, cut in last) / len(last)
        return known[most]

    def seconds(self, jobs: Iterable[GenerationJob]) -> float:
        """The expected time for these jobs; 0 before the first measured one."""
        read_s, written_s = self._read.token_s, self._written.token_s
        return CAUTION * sum(job.unread * read_s + self.tokens(job.request.max_tokens) * written_s for job in jobs)


class Speed:
    """A speed; what was measured long ago counts less."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._tokens, self._seconds = kept * self._tokens + tokens, kept * self._seconds + seconds

    @property
    def token_s(self) -> float:
        """Seconds for a token; 0 before the first one."""
        return self._seconds / self._tokens if self._tokens else 0.0


class _SamplerRows:
    """The sampler, its jobs under way, and the finished rows that it keeps."""

    def __init__(self, sampler: "MixedSampler") -> None:
        self.sampler = sampler
        self.jobs: dict[int, GenerationJob] = {}
        self.kept: dict[int, tuple[tuple[int, ...], float]] = {}
        """Row → all its tokens, and when its text was done; least recently used first."""

    def make_room(self, job: GenerationJob, most_rows: int, most_tokens: int) -> bool:
        """Whether there is room for a job's row, which kept rows make, the least recently used first. The cache has as
        many columns in every row as the longest needs, so the tokens that count are rows times those."""
        ends = [one.request.end for one in (*self.jobs.values(), job)]
        if len(self.jobs) and (len(ends) > most_rows or len(ends) * max(ends) > most_tokens):
            return False
        continued = self._longest_kept(job.request.ids)
        others = {key: len(row) for key, (row, _) in self.kept.items() if key != continued}
        while others:
            rows = len(ends) + len(others)
            if rows <= most_rows and rows * max(*ends, *others.values()) <= most_tokens:
                break
            self.forget(next(iter(others)))
            del others[next(iter(others))]
        return True

    def take(self, key: int, job: GenerationJob) -> None:
        """Continue a kept row, or open a new one."""
        request = job.request
        known = self._longest_kept(request.ids)
        if known is None:
            self.jobs[key] = job
            told = Request(key, request.ids, request.max_tokens, request.seed, _NOBODY)
            self.sampler.start_kind(told, request.kind)
        else:
            job.reused = len(self.kept.pop(known)[0])
            job.unread = max(0, job.unread - job.reused)
            self.jobs[known] = job
            told = Request(known, request.ids[job.reused :], request.max_tokens, request.seed, _NOBODY)
            self.sampler.extend_kind(told, request.kind)

    def keep(self, turn: Turn) -> GenerationJob:
        """Finish the job of a turn; its row is kept, unless it failed."""
        job = self.jobs.pop(turn.key)
        job.turn = turn
        if turn.ids and not turn.fault:
            self.kept[turn.key] = job.request.ids + turn.ids, time.monotonic()
        else:
            self.sampler.close(turn.key)
        return job

    def forget(self, key: int) -> None:
        """Close a kept row."""
        del self.kept[key]
        self.sampler.close(key)

    def tidy(self) -> None:
        """Close the kept rows that nobody continues, and free what no row needs."""
        now = time.monotonic()
        while self.kept and next(iter(self.kept.values()))[1] + KEPT_S <= now:
            self.forget(next(iter(self.kept)))
        if self.jobs or self.kept:
            self.sampler.trim()
        else:
            self.sampler.release()

    def drop_cancelled(self) -> None:
        """Close the rows whose clients have disconnected."""
        for key in [key for key, job in self.jobs.items() if job.done.cancelled()]:
            del self.jobs[key]
            self.sampler.close(key)

    def _longest_kept(self, ids: tuple[int, ...]) -> int | None:
        fitting = [(len(row), key) for key, (row, _) in self.kept.items() if ids[: len(row)] == row]
        return max(fitting)[1] if fitting else None


class GenerationWorker(Worker):
    """Takes requests in the event loop, and generates in its thread."""

    def __init__(
        self,
        open_sampler: Callable[[], "MixedSampler"],
        max_rows: int,
        most_tokens: int,
        queue: int,
        most_wait_s: float,
    ) -> None:
        super().__init__("coseek-write")
        self.max_rows, self.most_tokens, self.queue, self.most_wait_s = max_rows, most_tokens, queue, most_wait_s
        self.faults = 0
        self.reused_tokens = 0
        """Prompt tokens that kept rows had read before."""
        self.written_tokens = 0
        self._open_sampler = open_sampler
        self._rows: _SamplerRows | None = None
        self._keys = itertools.count()
        self.version: int | str | None = None
        """The version of the weights, as it was named when they were loaded."""
        self._waiting: deque[GenerationJob] = deque()
        self._changes: deque[WeightChange] = deque()
        self._running = 0
        self._pace = Pace()
        self._under_way_s = 0.0
        """Expected time for the texts under way."""
        self._began = self._tidied = time.perf_counter()
        """When the step under way began, and the last look at the memory."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Texts under way."""
        return self._running

    async def write(self, requests: list[GenerationRequest], arrived: float | None = None) -> list[GenerationJob]:
        """Queue the texts of one HTTP request and wait for them. Raises `RefusedRequest` (503) when the queue is full,
        when others are before them and all are expected to take longer than `most_wait_s`, or when none of them has
        begun after `most_wait_s`, counted from `arrived` in the event loop's time.

        When cancelled, it withdraws them.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        waited_s = 0.0 if arrived is None else now - arrived
        read: set[tuple[int, ...]] = set()
        jobs = []
        for request in requests:
            jobs.append(GenerationJob(request, loop.create_future(), 0 if request.ids in read else len(request.ids)))
            read.add(request.ids)
        with self._changed:
            before_s = self._under_way_s + self._pace.seconds(self._waiting)
            too_long = before_s > 0 and waited_s + before_s + self._pace.seconds(jobs) > self.most_wait_s
            if len(self._waiting) + len(jobs) > self.queue or too_long:
                raise self._refused(before_s)
            self._waiting += jobs
            self._changed.notify()
        try:
            await self._finished(jobs, self.most_wait_s - waited_s)
        except (asyncio.CancelledError, RefusedRequest):
            for job in jobs:
                job.done.cancel()
            with self._changed:  # else they would keep others out of the queue
                self._waiting = deque(job for job in self._waiting if not job.done.cancelled())
            raise
        return jobs

    async def _finished(self, jobs: list[GenerationJob], begin_s: float) -> None:
        """Wait for jobs. Raises `RefusedRequest` where none of them has begun after so many seconds: what stands before
        them takes longer than was expected."""
        await asyncio.wait([job.done for job in jobs], timeout=max(LEAST_WAIT_S, begin_s))
        if not any(job.begun for job in jobs):
            with self._changed:
                before_s = self._under_way_s + self._pace.seconds(self._waiting)
            raise self._refused(before_s)
        for job in jobs:
            await job.done

    def _refused(self, before_s: float) -> RefusedRequest:
        again_s = min(60, max(1, math.ceil(before_s)))
        busy = len(self._waiting) + self._running
        return RefusedRequest(503, f"{busy} texts are under way or waiting already; retry later", again_s)

    async def change_weights(self, make: Callable[[], None], version: int | str | None) -> None:
        """Call `make` in the thread once the texts under way are done; those that wait begin after it."""
        change = WeightChange(make, version, asyncio.get_running_loop().create_future())
        with self._changed:
            self._changes.append(change)
            self._changed.notify()
        await change.done

    def _work(self) -> None:
        while self._admit():
            if self._rows is not None and self._rows.jobs:
                self._tell(self._written(self._rows))
            self._tidy()

    def _admit(self) -> bool:
        """Wait for work, and start what there is room for; false when closed and done."""
        with self._changed:
            while not self._waiting and not self._running and not self._changes:
                if self._closed:
                    return False
                if not self._changed.wait(KEPT_S if self._rows is not None else None):
                    break
            self._began = time.perf_counter()
            changes = list[WeightChange]()
            if not self._running:
                changes, self._changes = [*self._changes], deque()
        for change in changes:
            self._rows = None  # kept rows were read with the weights before
            change.make()
            self.version = change.version
        self._wake(changes)
        if self._rows is not None:
            self._rows.drop_cancelled()
        while (job := self._next()) is not None:
            if not job.done.cancelled():
                self._take(job)
        self._count_running()
        return True

    def _next(self) -> GenerationJob | None:
        """The first job of the queue, if there is room for its row; then nobody overtakes one that takes much."""
        with self._changed:
            if not self._waiting or self._changes:  # nothing new begins before the weights have changed
                return None
            if self._rows is not None and not self._rows.make_room(self._waiting[0], self.max_rows, self.most_tokens):
                return None
            return self._waiting.popleft()

    def _count_running(self) -> None:
        under_way = self._rows.jobs.values() if self._rows is not None else ()
        self._running, self._under_way_s = len(under_way), self._pace.seconds(under_way)

    def _take(self, job: GenerationJob) -> None:
        """Give a job to the sampler."""
        try:
            rows = self._rows = self._rows or _SamplerRows(self._open_sampler())
            job.version, job.begun = self.version, True
            rows.take(next(self._keys), job)
            self.reused_tokens += job.reused
        except Exception as error:  # noqa: BLE001 (a bug fails its request and not the service)
            self._broken(error, [job])

    def _written(self, rows: _SamplerRows) -> list[GenerationJob]:
        """Generate `STRETCH` tokens a row; returns the jobs that are finished by it."""
        sampler = rows.sampler
        read, read_s, written = sampler.tokens_read, sampler.read_s, sampler.tokens_written
        try:
            turns = sampler.step(STRETCH)
            read_s = sampler.read_s - read_s
            took_s = time.perf_counter() - self._began  # with all that was done besides
            self._pace.add(sampler.tokens_read - read, read_s, sampler.tokens_written - written, took_s - read_s)
            for job in rows.jobs.values():
                job.unread = 0
            return [rows.keep(turn) for turn in turns]
        except Exception as error:  # noqa: BLE001 (the same)
            self._broken(error, [])
            return []

    def _tidy(self) -> None:
        """Look at the memory now and then."""
        now = time.perf_counter()
        if self._rows is None or now - self._tidied < TRIM_S:
            return
        self._tidied = now
        try:
            self._rows.tidy()
        except Exception as error:  # noqa: BLE001 (the same)
            self._broken(error, [])

    def _broken(self, error: Exception, jobs: list[GenerationJob]) -> None:
        """Discard a sampler that raised, and fail its jobs."""
        print_bug()
        rows, self._rows = self._rows, None
        lost = [*jobs, *(rows.jobs.values() if rows is not None else ())]
        for job in lost:
            job.fault = error
        self._tell(list(dict.fromkeys(lost)))

    def _tell(self, jobs: list[GenerationJob]) -> None:
        for job in jobs:
            self.faults += job.fault is not None or (job.turn is not None and bool(job.turn.fault))
            if job.turn is not None:
                self.written_tokens += len(job.turn.ids)
                self._pace.add_text(len(job.turn.ids), job.request.max_tokens)
        self._count_running()
        self._wake(jobs)
