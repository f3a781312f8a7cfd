"""Model engine: turns of one open model for many coroutines, in one thread.

Rows stay open between the turns of an episode, and a new row joins those under way, so a turn is what it is in a run.
"""

import asyncio
import sys
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from coseek.core.errors import ModelError
from coseek.models.model import ForkableModel, Model, Request, ServedModel, Turn
from coseek.serve.worker import Worker

if TYPE_CHECKING:
    from coseek.models.sampler import Sampler

STRETCH = 4
"""Tokens of a row between two looks at the queue."""


@dataclass(slots=True, eq=False)
class TurnJob:
    """A turn that is wanted."""

    request: Request
    done: "asyncio.Future[None]"
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

    async def turn(self, request: Request) -> Turn:
        """The turn of a request; its row is opened or continued. Raises `ModelError` for a model with a bug."""
        job = TurnJob(request, asyncio.get_running_loop().create_future())
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
                traceback.print_exc(file=sys.stderr)
                self.faults += 1
                self._fail(self.model)
            else:
                self._deliver(turns)

    @staticmethod
    def _step(model: Model) -> list[Turn]:
        if isinstance(model, ForkableModel):  # a local sampler
            return cast("Sampler", model).step(STRETCH)
        return model.step()

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
