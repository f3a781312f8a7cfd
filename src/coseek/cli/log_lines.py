"""Log lines: what long work says where nobody looks at a terminal: the time, how far it is, how long it still takes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Seconds, which never go back."""

QUIET_S = 20.0
"""A stage says a line at most this often, and once more at its end."""


def stamped(line: str) -> str:
    """A line with the date, the time and the zone in front."""
    return f"{datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')} {line}"


@dataclass
class StageTimer:
    """How fast one stage goes."""

    name: str
    total: int | None = None
    done: int = 0
    clock: Clock = time.monotonic
    _began: float = field(init=False, default=0.0)
    _first: tuple[float, int] | None = None
    """When the stage was first heard of, and what was done: what a resumed stage brings along took no time now."""
    _said: float | None = None

    def __post_init__(self) -> None:
        self._began = self.clock()

    def due(self, wait_s: float = 0.0) -> bool:
        """Whether a line should be said now: not before `wait_s`, then every `QUIET_S`, and at the end."""
        now = self.clock()
        self._first = self._first or (now, self.done)
        lately = self._said is not None and now - self._said < QUIET_S and self.done != self.total
        if now - self._began < wait_s or lately:
            return False
        self._said = now
        return True

    def line(self, note: str = "") -> str:
        """`questions 120/512, 0:04:10 left, EM .41`"""
        count = f"{self.name} {self.done}" + (f"/{self.total}" if self.total is not None else "")
        left_s = self.left_s
        left = "" if left_s is None else f"{timedelta(seconds=round(left_s))} left"
        return ", ".join(part for part in (count, left, note.strip()) if part)

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at the pace so far; `None` while nothing was done, and at the end."""
        since, done = self._first or (self._began, 0)
        if self.total is None or not done < self.done < self.total:
            return None
        return (self.clock() - since) / (self.done - done) * (self.total - self.done)
