"""Server pool: one model behind several servers. A row stays at one server, which has it in its prefix cache.

Every request contains the whole row, so a row whose server fails continues at another one, and no episode is lost. Only
servers with the current weights are used.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import RLock

from coseek.core.errors import ModelError, SettingError
from coseek.core.files import JsonObject
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.remote import EndedCall, RemoteModel, RemoteModelSettings, collect, open_remote

REST_S = 30.0
"""Seconds for which a server that failed is tried last."""


@dataclass(slots=True)
class _PooledRow:
    """A row so far."""

    request: Request
    """The last one, with the ids of the whole row and the ranges that the model wrote."""
    server: int = -1
    """The index of its server; −1 while it is held back."""
    failed: set[int] = field(default_factory=set)
    """Servers that failed at its current turn."""
    is_pending: bool = True


class ServerPool:
    """Implements `ServedModel`. Driven by one thread; another one may change the servers' weights between `pause` and
    `use`. Calls run in the background."""

    def __init__(self, servers: Sequence[RemoteModel]) -> None:
        """`servers` share one `done` queue."""
        self.servers = servers
        self.tokenizer: Tokenizer = servers[0].tokenizer
        self.moved = 0
        """Turns that were requested again from another server."""
        self._current_servers = set(range(len(servers)))
        """Servers with the current weights."""
        self._rests_until = [0.0] * len(servers)
        self._rows: dict[int, _PooledRow] = {}
        self._done_calls = servers[0].done
        self._lost_turns: list[Turn] = []
        """Faults of rows without a server."""
        self._lock = RLock()
        self._paused = self._stopped = False

    @property
    def concurrency(self) -> int:
        """Rows that the servers continue at once."""
        return sum(self.servers[index].concurrency for index in self._current_servers)

    def pause(self) -> None:
        """Hold turns back until `use`, and wait for those that are being sampled: each is of one version of the
        weights."""
        with self._lock:
            self._paused = True
            pending_calls = [call for server in self.servers for call in server.pending]
        wait(pending_calls)

    def use(self, current: Sequence[int], version: int, names: Mapping[int, str] | None = None) -> None:
        """Use only the servers with these indices from now on, which have the weights of a version. `names`: the new
        names of the model by index, if they changed. Sends the turns that were held back."""
        with self._lock:
            self._current_servers, self._paused = set(current), False
            for index in current:
                server = self.servers[index]
                server.version = version
                if names and index in names:
                    server.served = replace(server.served, model=names[index])
            for row in self._rows.values():
                if row.is_pending and row.server < 0:
                    self._send(row)
            if self._lost_turns:
                self.wake()

    def stop(self) -> None:
        """End the rollout that another thread drives: its next `step` raises `ModelError`."""
        self._stopped = True
        self.wake()

    def start(self, request: Request) -> None:
        with self._lock:
            self._rows[request.key] = row = _PooledRow(request)
            self._send(row)

    def extend(self, request: Request) -> None:
        row = self._rows[request.key]
        with self._lock:
            row.request = replace(request, ids=row.request.ids + request.ids, written=row.request.written)
            row.is_pending, row.failed = True, set()
            if row.server in self._current_servers and not self._paused:
                self.servers[row.server].extend(request)
            else:
                self._leave_server(row)
                self._send(row)

    def wake(self) -> None:
        self._done_calls.put(None)

    def step(self) -> list[Turn]:
        """Wait for at least one row, or until `wake`; returns the turns of all finished rows."""
        if self._stopped:
            raise ModelError("the rollout was stopped")
        with self._lock:
            turns, self._lost_turns = self._lost_turns, []
        is_pending = any(row.is_pending for row in self._rows.values())
        return collect(self._done_calls, self._turns_of, turns) if is_pending else turns

    def close(self, key: int) -> None:
        """Close a row and cancel its pending call."""
        with self._lock:
            row = self._rows.pop(key, None)
            if row is not None:
                self._leave_server(row)

    def _turns_of(self, key: int, future: "Future[JsonObject]") -> list[Turn]:
        """The turn of an ended call; empty for a closed row, and for one that another server continues."""
        with self._lock:
            row = self._rows.get(key)
            turns = self.servers[row.server].taken(key, future) if row is not None and row.server >= 0 else []
            if row is None or not turns:
                return []
            (turn,) = turns
            if turn.end is TurnEnd.FAULT:
                row.failed.add(row.server)
                self._rests_until[row.server] = time.monotonic() + REST_S
                if self._current_servers - row.failed:
                    self.moved += 1
                    self._leave_server(row)
                    self._send(row)
                    return []
            row.is_pending = False
            ids, written = row.request.ids + turn.ids, (len(row.request.ids), len(row.request.ids) + len(turn.ids))
            row.request = replace(row.request, ids=ids, written=(*row.request.written, written))
            return turns

    def _send(self, row: _PooledRow) -> None:
        """Open the whole row at the server with the fewest rows; hold it back during a pause."""
        if self._paused:
            return
        choices = self._current_servers - row.failed
        if not choices:
            row.is_pending = False
            fault = "no rollout server has the current weights"
            self._lost_turns.append(Turn(row.request.key, (), (), TurnEnd.FAULT, fault))
            return
        now, busy_servers = time.monotonic(), [other.server for other in self._rows.values() if other.is_pending]
        row.server = min(choices, key=lambda index: (self._rests_until[index] > now, busy_servers.count(index), index))
        self.servers[row.server].start(row.request)

    def _leave_server(self, row: _PooledRow) -> None:
        if row.server >= 0:
            self.servers[row.server].close(row.request.key)
            row.server = -1


def open_pool(
    urls: Sequence[str], settings: RemoteModelSettings, tokenizer: Tokenizer, stops: Sequence[str], temperature: float
) -> ServerPool:
    """Open the model at several URLs. Raises `SettingError` for a server that cannot be asked."""
    done: SimpleQueue[EndedCall[JsonObject] | None] = SimpleQueue()
    servers = [open_remote(url, settings, tokenizer, stops, temperature) for url in urls]
    for server in servers:
        server.done = done
        if server.inexact:
            raise SettingError(f"{server.calls.base}: {server.inexact}")
    return ServerPool(servers)
