"""Worker: a thread with a queue beside an event loop, and the service around it."""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeAlias, TypeVar

from coseek.core.files import JsonObject
from coseek.serve.budgets import HeldBytes
from coseek.serve.settings import AgentServeSettings, ListenSettings, ServeSettings

L = TypeVar("L", bound=ListenSettings)
T = TypeVar("T")


class Waits(Protocol):
    """A job whose request waits for `done` in the event loop."""

    @property
    def done(self) -> "asyncio.Future[None]": ...


class Worker(ABC):
    """The thread. A subclass implements `_work`, which runs until `_closed` is set and the queue is empty."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._changed = threading.Condition()
        """Guards the queue; notified when it grows and when it is closed."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, first: Callable[[], bool]) -> None:
        """Start the thread from within the event loop. It calls `first`, and works if that returns true."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._begin, args=(first,), name=self._name, daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> bool:
        """Finish the queue and end the thread; false if it still runs after `wait_s` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(wait_s)
        return self._thread is None or not self._thread.is_alive()

    def _begin(self, first: Callable[[], bool]) -> None:
        if first():
            self._work()

    @abstractmethod
    def _work(self) -> None:
        """Take jobs until the queue is closed and empty."""

    def _wake(self, jobs: Iterable[Waits]) -> None:
        """Let the requests of finished jobs go on; called in the thread."""
        self._later(_finish, [job.done for job in jobs])

    def _later(self, call: Callable[[Sequence[T]], None], given: Sequence[T]) -> None:
        """Call in the event loop, unless nothing is given; called in the thread."""
        if given and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, given)


def _finish(finished: Sequence["asyncio.Future[None]"]) -> None:
    for done in finished:
        if not done.done():  # cancelled where the client has gone
            done.set_result(None)


class Service(ABC, Generic[L]):
    """Opens what it serves in its worker's thread, so that `/health` answers meanwhile."""

    def __init__(self, settings: L, worker: Worker) -> None:
        self.settings, self._worker = settings, worker
        self.held = HeldBytes(settings.max_held_bytes)
        self._side = ThreadPoolExecutor(1, "coseek-side")
        """One thread, so that large requests are read and written one after the other."""
        self.failure: Exception | None = None
        """Why it could not be opened."""
        self.stopping = False
        self.when_open: Callable[[], None] = lambda: None
        """Called in the event loop once everything is open, or could not be (then there is a `failure`)."""

    @abstractmethod
    def health(self) -> JsonObject:
        """`ready`, and `why` not; the answer of `/health`."""

    @abstractmethod
    def _open(self) -> None:
        """Open everything; called in the worker's thread."""

    def why_not(self, name: str, is_open: bool) -> str:
        """Why nothing can be asked of what has this name; empty when it can."""
        if self.stopping:
            return "the service is stopping"
        if self.failure is not None:
            return f"{name} could not be opened"
        return "" if is_open else f"{name} is being opened"

    def start(self) -> None:
        """Begin to open; called in the event loop."""
        loop = asyncio.get_running_loop()

        def first() -> bool:
            try:
                self._open()
            except Exception as error:  # noqa: BLE001 (raised again by whoever runs the service)
                self.failure = error
            with contextlib.suppress(RuntimeError):  # the service may have been stopped, and its loop closed
                loop.call_soon_threadsafe(self.when_open)
            return self.failure is None

        self._worker.start(first)

    async def aside(self, long: bool, call: Callable[[], T]) -> T:
        """The result of a call, which is made in a thread where it is long, so that other requests go on."""
        return await asyncio.get_running_loop().run_in_executor(self._side, call) if long else call()

    def close(self, wait_s: float) -> bool:
        """End the work; false when that takes longer than `wait_s` seconds."""
        return self._worker.close(wait_s)


AnyService: TypeAlias = Service[ListenSettings] | Service[ServeSettings] | Service[AgentServeSettings]
