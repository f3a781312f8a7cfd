"""Metrics: the log `metrics.jsonl`, with one row per step, truncated to the checkpoint when a run resumes.

A checkpoint binds the rows before it by the digest of their chain.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DiskFault, RunError
from coseek.core.files import JsonObject, json_line, read_jsonl
from coseek.data.run_seal import chained

Listener: TypeAlias = Callable[[Path, Mapping[str, float], int | None], None]
"""Called after every row with the log's path, the row, and the step of the row before it. Must not raise."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Make every log that is opened in this block call `listener`, without passing it through the trainers."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class MetricsLog:
    """Appends rows. `position` is the length of the file in bytes, for the checkpoint."""

    def __init__(self, path: Path, position: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        path.touch()
        size = path.stat().st_size
        if size < position:
            raise RunError(
                f"{path} holds {size} bytes and the checkpoint was made at {position}; put the file back as it was"
            )
        os.truncate(path, position)
        self.position = position
        self.rows, self._chain = 0, ""
        self._last_step: int | None = None
        for _, row in read_jsonl(path):
            self._bind(row)
        self._listener = _listener.get()

    def write(self, row: Mapping[str, float]) -> None:
        """Append one row. Raises `DiskFault` if it cannot be written."""
        written: JsonObject = {**as_written(row)}
        line = json_line(written).encode()
        try:
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise DiskFault(
                f"{self.path} cannot be written ({error.strerror}); make room there and go on with --resume"
            ) from None
        self.position += len(line)
        last_step = self._last_step
        self._bind(written)
        if self._listener is not None:
            self._listener(self.path, as_written(row), last_step)

    def _bind(self, row: JsonObject) -> None:
        self.rows, self._chain = self.rows + 1, chained(self._chain, row)
        step = row.get("step")
        self._last_step = int(step) if isinstance(step, int | float) else None

    @property
    def seal(self) -> JsonObject:
        """What binds the rows so far, for a checkpoint."""
        return {"rows": self.rows, "digest": self._chain}

    def sync(self) -> None:
        """Flush the file to disk; call it before a checkpoint that stores `position`."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def as_written(row: Mapping[str, float]) -> dict[str, float]:
    """Return the row as it is written: numbers rounded to 6 digits, without non-finite ones, which JSON cannot hold."""
    return {name: _short(value) for name, value in row.items() if math.isfinite(value)}


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.6g}")
