"""Concurrency: parts that take several calls at once, and work that is done ahead in threads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar, runtime_checkable

A = TypeVar("A")
B = TypeVar("B")


@runtime_checkable
class Concurrent(Protocol):
    """A thread-safe part that answers several calls at once, such as the client of a server."""

    @property
    def concurrency(self) -> int:
        """Calls that it answers at once."""
        ...


def concurrency_of(part: object) -> int:
    """Calls that a part answers at once; 1 for a part in this process, which takes one batch at a time."""
    return part.concurrency if isinstance(part, Concurrent) else 1


class WorkAhead(Generic[A, B]):
    """The results of `work` on batches of items.

    With `threads` above 1, so many batches are worked on ahead, and results come in the order of completion. Otherwise
    a batch is worked on in the caller's thread when its result is taken, in the order of the items. Results that are
    never taken are computed all the same once they have begun: an interrupted caller loses no call that was paid for,
    if `work` stores its results.
    """

    def __init__(
        self,
        work: Callable[[A], B],
        items: Iterable[A],
        threads: int,
        on_result: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_result` is called from a thread when a result can be taken."""
        self._work, self._items, self._threads = work, iter(items), threads
        self._on_result = on_result
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="coseek-ahead") if threads > 1 else None
        self._done: SimpleQueue[Future[B]] = SimpleQueue()
        self._open = 0
        self._left = True

    def take(self, wait: bool = True) -> list[B] | None:
        """The next result, alone in a list; `None` after the last one. Without `wait` the list is empty where threads
        have no result yet."""
        self._begin()
        if self._pool is None:
            for item in self._items:
                return [self._work(item)]
            return None
        if not self._open:
            return None
        if not wait and self._done.empty():
            return []
        self._open -= 1
        result = self._done.get().result()
        self._begin()
        return [result]

    def __iter__(self) -> Iterator[B]:
        while (found := self.take()) is not None:
            yield from found

    def close(self) -> None:
        """Wait for what has begun, and begin nothing more."""
        self._left = False
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "WorkAhead[A, B]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Fill the threads with work."""
        while self._pool is not None and self._left and self._open < self._threads:
            for item in self._items:
                future = self._pool.submit(self._work, item)
                self._open += 1
                future.add_done_callback(self._finished)
                break
            else:
                self._left = False

    def _finished(self, future: "Future[B]") -> None:
        self._done.put(future)
        self._on_result()
