"""Metrics log: one line a step in `metrics.jsonl`, cut back to the checkpoint when a run goes on."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DiskFault, RunError
from coseek.core.files import json_line

Listener: TypeAlias = Callable[[Path], None]
"""Called with a log's path when the log was opened and after every row. Must not raise."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Every log that is opened in this block calls `listener`: no trainer between has to pass it on."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class MetricsLog:
    """Appends lines; `position` is where the file ends, for the checkpoint."""

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
        self._listener = _listener.get()
        if self._listener is not None:
            self._listener(path)

    def write(self, row: Mapping[str, float]) -> None:
        """One line."""
        line = json_line({**as_written(row)}).encode()
        try:
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise DiskFault(
                f"{self.path} cannot be written ({error.strerror}); make room there and go on with --resume"
            ) from None
        self.position += len(line)
        if self._listener is not None:
            self._listener(self.path)

    def sync(self) -> None:
        """On disk before a checkpoint that counts on it."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def as_written(row: Mapping[str, float]) -> dict[str, float]:
    """The row as a reader of the file will find it. What is not a finite number has no place in JSON: left out."""
    return {name: _short(value) for name, value in row.items() if math.isfinite(value)}


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.6g}")
