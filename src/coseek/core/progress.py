"""Progress reports of long work, independent of a terminal."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

Evaluate: TypeAlias = Callable[[int], Mapping[str, float]]
"""(finished steps) → named metrics of the current model."""


class Progress(Protocol):
    """Receives the progress of long work."""

    def stage(self, name: str, total: int) -> None:
        """A new stage of `total` steps starts; the stage before is over."""

    def advance(self, done: int, note: str = "") -> None:
        """`done` steps of the stage are finished; `note` is a short metric such as `EM .41`."""

    def say(self, line: str) -> None:
        """A line to keep on the screen."""

    def warn(self, line: str) -> None:
        """Like `say`, for what should be known even when no progress is wanted: alarms, missed gates."""


class NoProgress:
    """Ignores all reports."""

    def stage(self, name: str, total: int) -> None:
        pass

    def advance(self, done: int, note: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def warn(self, line: str) -> None:
        self.say(line)


class PrintedProgress:
    """Prints reports line by line, as a notebook shows them: of a stage's steps one every few seconds, and the last."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s, self._printed = every_s, 0.0
        self._name, self._total = "", 0

    def stage(self, name: str, total: int) -> None:
        self._name, self._total = name, total

    def advance(self, done: int, note: str = "") -> None:
        if done >= self._total or time.monotonic() - self._printed >= self._every_s:
            self._printed = time.monotonic()
            print(f"{self._name} {done}/{self._total}{f': {note}' if note else ''}", flush=True)

    def say(self, line: str) -> None:
        print(line, flush=True)

    def warn(self, line: str) -> None:
        print(f"warning: {line}", flush=True)
