"""Model engine: turns of one open model for many coroutines, in one thread.

Rows stay open between the turns of an episode, and a new row joins those under way, so a turn is what it is in a run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from coseek.core.errors import ModelError
from coseek.models.model import ForkableModel, Model, Request, ServedModel, Turn
from coseek.serve.logs import print_bug
from coseek.serve.worker import Worker

if TYPE_CHECKING:
    from coseek.models.sampler import Sampler

TOLD_AT_ONCE = 8
"""Turns whose new tokens are sent after a step, about. With more turns under way each sends several tokens at a time,
since sending takes time from sampling."""

HearIds: TypeAlias = Callable[[Sequence[int]], None]
"""Called in the event loop with the ids that a turn has grown by."""


@dataclass(slots=True, eq=False)
class TurnJob:
    """A turn that is wanted."""

    request: Request
    done: "asyncio.Future[None]"
    hear: HearIds | None = None
    told: int = 0
    """Ids that `hear` has got."""
    turn: Turn | None = None


class ModelEngine(Worker):
    """Takes requests in the event loop, and writes in its thread. `model` is set before the first request."""

    def __init__(self) -> None:
        super().__init__("coseek-agent")
        self.model: Model | None = None
        self.faults = 0
        self._asked: deque[TurnJob | int] = deque()
        """Turns that are wanted, and keys of rows to be closed, in order."""
        self._jobs: dict[int, TurnJob] = {}
        self._open: set[int] = set()

    @property
    def open_rows(self) -> int:
        """Rows that are open in the model or will be."""
        return len(self._open) + len(self._asked)

    async def turn(self, request: Request, hear: HearIds | None = None) -> Turn:
        """The turn of a request; its row is opened or continued. Raises `ModelError` for a model with a bug.

        `hear` gets the ids while a local sampler writes them, without the last ones, which come with the turn; other
        models write turns whole."""
        job = TurnJob(request, asyncio.get_running_loop().create_future(), hear)
        self._ask(job)
        await job.done
        if job.turn is None:
            raise ModelError("the model failed; the service's log has the details")
        return job.turn

    def close_row(self, key: int) -> None:
        """Free a row, whether it is under way or not."""
        self._ask(key)

    def _ask(self, what: TurnJob | int) -> None:
        with self._changed:
            self._asked.append(what)
            self._changed.notify()
        if isinstance(self.model, ServedModel):
            self.model.wake()

    def _work(self) -> None:
        assert self.model is not None
        while self._admit(self.model):
            try:
                turns = self._step(self.model)
            except Exception:  # noqa: BLE001 (a bug fails the turns under way and not the service)
                print_bug()
                self.faults += 1
                self._fail(self.model)
            else:
                self._deliver(turns)

    def _step(self, model: Model) -> list[Turn]:
        if not isinstance(model, ForkableModel):
            return model.step()
        sampler = cast("Sampler", model)
        turns = sampler.step_new()  # whoever has asked just now sees nothing yet, and does not wait for a whole step
        ended = {turn.key for turn in turns}
        self._tell(sampler, ended, new=True)
        turns += sampler.step(1)  # requests that came meanwhile join at the next token
        self._tell(sampler, ended | {turn.key for turn in turns})
        return turns

    def _tell(self, sampler: "Sampler", ended: Set[int], new: bool = False) -> None:
        """Send the new ids of turns under way, the first one of each at once; `new`: only those first ones."""
        few = -(-len(self._jobs) // TOLD_AT_ONCE)
        told: list[tuple[HearIds, list[int]]] = []
        for key, job in self._jobs.items():
            if job.hear is None or key in ended or (new and job.told):
                continue
            ids = sampler.written(key, job.told)
            if len(ids) >= (few if job.told else 1):
                job.told += len(ids)
                told.append((job.hear, ids))
        self._later(_hear, told)

    def _admit(self, model: Model) -> bool:
        """Wait for work and begin it; false when closed and done."""
        while True:
            with self._changed:
                while not self._asked and not self._jobs:
                    if self._closed:
                        return False
                    self._changed.wait()
                asked, self._asked = self._asked, deque()
            for what in asked:
                self._carry_out(model, what)
            if self._jobs:
                return True

    def _carry_out(self, model: Model, what: TurnJob | int) -> None:
        if isinstance(what, int):
            self._jobs.pop(what, None)
            if what in self._open:
                self._open.remove(what)
                model.close(what)
        elif not what.done.cancelled():
            key = what.request.key
            self._jobs[key] = what
            if key in self._open:
                model.extend(what.request)
            else:
                self._open.add(key)
                model.start(what.request)

    def _deliver(self, turns: Sequence[Turn]) -> None:
        finished = []
        for turn in turns:
            job = self._jobs.pop(turn.key, None)
            if job is not None:  # else its row was closed meanwhile
                job.turn = turn
                finished.append(job)
        self._wake(finished)

    def _fail(self, model: Model) -> None:
        """End all rows without a turn."""
        jobs, self._jobs = list(self._jobs.values()), {}
        for key in self._open:
            model.close(key)
        self._open.clear()
        self._wake(jobs)


def _hear(told: Sequence[tuple[HearIds, list[int]]]) -> None:
    for hear, ids in told:
        hear(ids)
