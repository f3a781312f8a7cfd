"""Worker: one thread behind an event loop. Requests wait in a queue of its own; it ends when that is done."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable


class Worker(ABC):
    """The thread's life. Who derives from it says in `_work` what the thread does until `_closed`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._changed = threading.Condition()
        """Guards the queue; notified when there is more to do, or when it was closed."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, first: Callable[[], bool]) -> None:
        """Start the thread from within the event loop. It does `first`, and works if that returns true."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._begin, args=(first,), name=self._name, daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> bool:
        """Finish what waits and end the thread; false if it is still at it after `wait_s`."""
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
        """What the thread does until it is closed."""
