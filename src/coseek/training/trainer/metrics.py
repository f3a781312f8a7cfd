"""Metrics: the log `metrics.jsonl`, with one row per step, truncated to the checkpoint when a run resumes."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DiskFault, RunError
from coseek.core.files import JsonObject, json_line, read_jsonl

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
        self._last_step: int | None = None
        for _, row in read_jsonl(path):
            self._last_step = _step_of(row)
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
        last_step, self._last_step = self._last_step, _step_of(written)
        if self._listener is not None:
            self._listener(self.path, as_written(row), last_step)

    def sync(self) -> None:
        """Flush the file to disk; call it before a checkpoint that stores `position`."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def as_written(row: Mapping[str, float]) -> dict[str, float]:
    """Return the row as it is written: numbers rounded to 6 digits, without non-finite ones, which JSON cannot hold."""
    return {name: _short(value) for name, value in row.items() if math.isfinite(value)}


def _step_of(row: JsonObject) -> int | None:
    step = row.get("step")
    return int(step) if isinstance(step, int | float) else None


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.6g}")


# Timer: measures the seconds of each part of a step.


@dataclass(slots=True)
class Timer:
    """Sums the seconds spent in each part of a step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began
