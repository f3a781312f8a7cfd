"""Server slots: how many calls are open at each server, over all clients of this process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from weakref import WeakValueDictionary


@dataclass(frozen=True, slots=True, order=True)
class _Waiter:
    """A call that waits for a slot, in the event loop of its client."""

    rank: int
    arrival: int
    limit: int = field(compare=False)
    loop: asyncio.AbstractEventLoop = field(compare=False)
    turn: "asyncio.Future[None]" = field(compare=False)


class ServerSlots:
    """The open calls of one server. Clients in different threads share it; calls are admitted by rank, the lowest
    first, and then in the order of arrival.

    Each call brings its client's limit, so that two clients with a limit of 64 open 64 calls together, not 128.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._waiting: list[_Waiter] = []
        """A heap."""
        self._arrivals = count()

    @asynccontextmanager
    async def one(self, limit: int, rank: int = 0) -> AsyncIterator[None]:
        """Hold a slot; waits while `limit` calls are open."""
        waiter = self._wait_in_line(limit, rank)
        if waiter is not None:
            try:
                await waiter.turn
            except asyncio.CancelledError:
                with self._lock:
                    admitted = waiter not in self._waiting
                    if not admitted:
                        self._waiting.remove(waiter)
                        heapify(self._waiting)
                if admitted:
                    self._free()
                raise
        try:
            yield
        finally:
            self._free()

    def _wait_in_line(self, limit: int, rank: int) -> _Waiter | None:
        """Take a slot and return `None`, or queue."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._open < limit and not self._waiting:
                self._open += 1
                return None
            waiter = _Waiter(rank, next(self._arrivals), limit, loop, loop.create_future())
            heappush(self._waiting, waiter)
            return waiter

    def _free(self) -> None:
        """Free a slot, and admit those that wait."""
        with self._lock:
            self._open -= 1
            while self._waiting and self._open < self._waiting[0].limit:
                waiter = heappop(self._waiting)
                self._open += 1
                waiter.loop.call_soon_threadsafe(_admit, waiter.turn)


def _admit(turn: "asyncio.Future[None]") -> None:
    if not turn.done():  # cancelled meanwhile; the waiter frees its slot
        turn.set_result(None)


_slots: WeakValueDictionary[str, ServerSlots] = WeakValueDictionary()
_finding = threading.Lock()


def slots_of(server: str) -> ServerSlots:
    """The slots of a server, the same object for all clients of this process."""
    with _finding:
        found = _slots.get(server)
        if found is None:
            found = _slots[server] = ServerSlots()
        return found
