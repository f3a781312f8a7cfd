"""Tool threads: the calls of open episodes, run while a model behind a server writes."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from coseek.agents.tool import Tool

A = TypeVar("A")
R = TypeVar("R")

MOST_THREADS = 256


class ToolThreads(Generic[A, R]):
    """Runs calls (A) in threads; each batch has one result (R).

    A tool that takes several calls at once gets each call in a thread of its own. Another tool gets one batch at a
    time: the calls that came meanwhile are its next batch.
    """

    def __init__(
        self,
        run: Callable[[Tool, Sequence[A]], R],
        at_once: Callable[[Tool], int],
        on_result: Callable[[], None],
    ) -> None:
        """`at_once` says how many calls a tool takes at once. `on_result` is called from a thread at every result."""
        self._run, self._at_once, self._on_result = run, at_once, on_result
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="coseek-tools")
        self._waiting: dict[Tool, list[A]] = {}
        self._begun: dict[Future[R], tuple[Tool, Sequence[A]]] = {}
        self._running: Counter[Tool] = Counter()
        """Batches by tool."""

    @property
    def open_calls(self) -> int:
        """Calls without a result that was taken."""
        return sum(map(len, self._waiting.values())) + sum(len(calls) for _, calls in self._begun.values())

    def submit(self, tool: Tool, calls: Sequence[A]) -> None:
        """Run calls of one tool."""
        self._waiting.setdefault(tool, []).extend(calls)
        self._begin(tool)

    def withdraw(self, tool: Tool, call: A) -> None:
        """Drop a call that has not begun; of another one the result can still be taken."""
        if call in (waiting := self._waiting.get(tool, [])):
            waiting.remove(call)

    def take(self, block: bool) -> list[tuple[Sequence[A], R]]:
        """The finished batches with their results; with `block` at least one, if any is open."""
        if block and self._begun:
            wait(self._begun, return_when=FIRST_COMPLETED)
        taken: list[tuple[Sequence[A], R]] = []
        for future in [future for future in self._begun if future.done()]:
            tool, calls = self._begun.pop(future)
            self._running[tool] -= 1
            self._begin(tool)
            taken.append((calls, future.result()))
        return taken

    def close(self) -> None:
        """Wait for the calls under way; the others are dropped."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._pool.shutdown(cancel_futures=True)

    def _begin(self, tool: Tool) -> None:
        waiting, most = self._waiting[tool], self._at_once(tool)
        while waiting and self._running[tool] < most:
            calls = waiting[:1] if most > 1 else waiting[:]
            del waiting[: len(calls)]
            self._running[tool] += 1
            future = self._pool.submit(self._run, tool, calls)
            self._begun[future] = (tool, calls)
            future.add_done_callback(lambda _: self._on_result())
