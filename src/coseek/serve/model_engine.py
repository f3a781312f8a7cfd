"""Model engine: turns of one open model for many coroutines, in one thread.

Rows stay open between the turns of an episode, and a new row joins those that are running, as in a run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from coseek.core.errors import ModelError
from coseek.models.model import ForkableModel, Model, Request, ServedModel, Tokenizer, Turn
from coseek.models.tokenizer import REPLACEMENT
from coseek.serve.service import WorkThread, print_bug

if TYPE_CHECKING:
    from coseek.models.sampler import Sampler

STREAMED_AT_ONCE = 8
"""Approximate number of turns whose new tokens are sent after a step. With more running turns each sends several tokens
at a time, since sending takes time from sampling."""
FAILED = "the model failed; the service's log has the details"
_WINDOW = 16
"""Number of ids from which the decoded window of a stream is shortened."""

OnIds: TypeAlias = Callable[[Sequence[int]], None]
"""Called in the event loop with the new ids of a turn."""


@dataclass(slots=True, eq=False)
class TurnJob:
    """A requested turn."""

    request: Request
    done: "asyncio.Future[Turn]"
    on_ids: OnIds | None = None
    sent: int = 0
    """Number of ids that were passed to `on_ids`."""


class ModelEngine:
    """Takes requests in the event loop and samples in a thread. `model` is set before the first request."""

    def __init__(self, thread: WorkThread) -> None:
        self.model: Model | None = None
        self.faults = 0
        self._thread = thread
        self._queue: deque[TurnJob | int] = deque()
        """Requested turns, and keys of rows to be closed, in order."""
        self._jobs: dict[int, TurnJob] = {}
        self._open: set[int] = set()
        self._lost: set[int] = set()
        """Rows that a failure of the model closed, and whose users do not know it yet."""
        self._writing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def open_rows(self) -> int:
        """Number of rows that are open in the model or will be."""
        return len(self._open) + len(self._queue)

    async def turn(self, request: Request, on_ids: OnIds | None = None) -> Turn:
        """Open or continue the row of a request and return its turn. Raises `ModelError` for a model with a bug.

        A local sampler passes ids to `on_ids` while it writes them, except the last ones, which are in the returned
        turn; other models return turns whole."""
        job = TurnJob(request, asyncio.get_running_loop().create_future(), on_ids)
        self._enqueue(job)
        return await job.done

    def close_row(self, key: int) -> None:
        """Free a row, even if its turn is running."""
        self._enqueue(key)

    def _enqueue(self, item: TurnJob | int) -> None:
        self._queue.append(item)
        if isinstance(self.model, ServedModel):
            self.model.wake()
        if self._writing is None or self._writing.done():
            self._loop = asyncio.get_running_loop()
            self._writing = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        assert self.model is not None
        model = self.model
        while self._queue:
            await self._thread.run(partial(self._write, model))

    def _write(self, model: Model) -> None:
        """Sample until no turn is requested; called in the thread."""
        while True:
            try:
                while self._queue:
                    self._handle(model, self._queue.popleft())
                if not self._jobs:
                    return
                turns = self._step(model)
            except Exception:  # noqa: BLE001 (a bug fails the running turns and not the service)
                print_bug()
                self.faults += 1
                self._fail(model)
            else:
                # A turn without a job belongs to a row that was closed meanwhile.
                jobs = [(self._jobs.pop(turn.key), turn) for turn in turns if turn.key in self._jobs]
                self._call_in_loop(partial(_finish, jobs))

    def _step(self, model: Model) -> list[Turn]:
        if not isinstance(model, ForkableModel):
            return model.step()
        sampler = cast("Sampler", model)
        turns = sampler.step(1)  # so that new requests join at the next token
        self._stream(sampler, {turn.key for turn in turns})
        return turns

    def _stream(self, sampler: "Sampler", ended_keys: Set[int]) -> None:
        """Send the new ids of running turns, the first id of each immediately."""
        least_ids = -(-len(self._jobs) // STREAMED_AT_ONCE)
        updates: list[tuple[OnIds, list[int]]] = []
        for key, job in self._jobs.items():
            if job.on_ids is None or key in ended_keys:
                continue
            ids = sampler.written(key, job.sent)
            if len(ids) >= (least_ids if job.sent else 1):
                job.sent += len(ids)
                updates.append((job.on_ids, ids))
        if updates:
            self._call_in_loop(partial(_call_listeners, updates))

    def _handle(self, model: Model, item: TurnJob | int) -> None:
        if isinstance(item, int):
            self._jobs.pop(item, None)
            self._lost.discard(item)
            if item in self._open:
                self._open.remove(item)
                model.close(item)
        elif (key := item.request.key) in self._lost:
            self._call_in_loop(partial(_finish, [(item, ModelError(FAILED))]))
        elif not item.done.cancelled():
            self._jobs[key] = item
            if key in self._open:
                model.extend(item.request)
            else:
                self._open.add(key)
                model.start(item.request)

    def _fail(self, model: Model) -> None:
        """End all rows with an error."""
        jobs, self._jobs = list(self._jobs.values()), {}
        for key in self._open:
            model.close(key)
        self._lost |= self._open
        self._open.clear()
        error = ModelError(FAILED)
        self._call_in_loop(partial(_finish, [(job, error) for job in jobs]))

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        """Call in the event loop; called in the thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)


def _finish(jobs: Iterable[tuple[TurnJob, Turn | ModelError]]) -> None:
    for job, outcome in jobs:
        if job.done.done():  # cancelled, because the client has disconnected
            continue
        if isinstance(outcome, ModelError):
            job.done.set_exception(outcome)
        else:
            job.done.set_result(outcome)


def _call_listeners(updates: Sequence[tuple[OnIds, list[int]]]) -> None:
    for on_ids, ids in updates:
        on_ids(ids)


class TextStream:
    """Decodes a turn piece by piece while it is sampled. The pieces joined are the decoding of all its ids; an
    incomplete character is held back.

    (Except for a tokenizer that decodes incomplete characters of byte tokens together with the text before them.)
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        """The last ids: decoded together, since a character may span tokens and a decoder may look back by one."""
        self._sent = 0
        """Number of characters of the window's text that were returned."""
        self._total_sent = 0

    def add(self, ids: Sequence[int]) -> str:
        """The new text that is certain after these further ids."""
        self._window += ids
        text = self._tokenizer.decode(self._window)
        certain = text.rstrip(REPLACEMENT)
        new_text = certain[self._sent :]
        self._sent += len(new_text)
        self._total_sent += len(new_text)
        if certain == text and len(self._window) >= _WINDOW and (last := self._tokenizer.decode(self._window[-1:])):
            self._window, self._sent = self._window[-1:], len(last)  # a decoder does not look back at an empty id
        return new_text

    def rest(self, ids: Sequence[int]) -> str:
        """The rest of the text of the whole turn `ids`."""
        return self._tokenizer.decode(ids)[self._total_sent :]
