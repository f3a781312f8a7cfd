"""Concurrency: parts that accept several calls at once, and work that threads do ahead."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")


def concurrency_of(part: object) -> int:
    """Number of calls that a part accepts at once: its `concurrency` if it is thread-safe, such as the client of a
    server; 1 for a local part, which takes one batch at a time."""
    return int(getattr(part, "concurrency", 1))


class WorkAhead(Generic[A, B]):
    """Applies `work` to items, ahead of the caller.

    With more than one thread, up to `threads` items are in progress, and results come in order of completion. With one,
    an item is processed in the caller's thread when its result is taken, in the order of the items. Work that has begun
    is always completed: if `work` stores its results, an interrupted caller loses no call that was paid for.
    """

    def __init__(
        self, work: Callable[[A], B], items: Iterable[A], threads: int, on_result: Callable[[], None] = lambda: None
    ) -> None:
        """`on_result` is called from a thread whenever a result is ready."""
        self._work, self._items, self._threads = work, iter(items), threads
        self._on_result = on_result
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="coseek-ahead") if threads > 1 else None
        self._done_futures: SimpleQueue[Future[B]] = SimpleQueue()
        self._open_count = 0
        self._has_items = True

    def take(self, wait: bool = True) -> list[B] | None:
        """Return the next result in a list of one, or `None` after the last one. Without `wait`, return an empty list
        if no thread has a result yet."""
        self._begin()
        if self._pool is None:
            for item in self._items:
                return [self._work(item)]
            return None
        if not self._open_count:
            return None
        if not wait and self._done_futures.empty():
            return []
        self._open_count -= 1
        result = self._done_futures.get().result()
        self._begin()
        return [result]

    def __iter__(self) -> Iterator[B]:
        while (result := self.take()) is not None:
            yield from result

    def close(self) -> None:
        """Wait for work in progress, and start no more."""
        self._has_items = False
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "WorkAhead[A, B]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Keep all threads busy."""
        while self._pool is not None and self._has_items and self._open_count < self._threads:
            for item in self._items:
                future = self._pool.submit(self._work, item)
                self._open_count += 1
                future.add_done_callback(self._on_done)
                break
            else:
                self._has_items = False

    def _on_done(self, future: "Future[B]") -> None:
        self._done_futures.put(future)
        self._on_result()
