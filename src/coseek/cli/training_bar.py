"""The terminal's side of `Progress`: a bar for each stage with the time left, and lines that stay above it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

QUIET_S = 20.0
"""Where nobody looks at a terminal (a log, CI), a stage says a line at most this often."""


class Bar:
    """Implements `coseek.training.progress.Progress`."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress, self._console = progress, console
        self._task: TaskID | None = None
        self._name, self._total = "", 0
        self._began = time.monotonic()
        self._said = 0.0

    def stage(self, name: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._name, self._total, self._said = name, total, -QUIET_S
        self._task = self._progress.add_task(name, total=total, note="")

    def advance(self, done: int, note: str = "") -> None:
        assert self._task is not None
        self._progress.update(self._task, completed=done, note=note)
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._said > QUIET_S or done == self._total):
            self._said = now
            self.say(f"{self._name} {done}/{self._total} {note}")

    def say(self, line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._console.print(f"{minutes:2d}:{seconds:02d} {line}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def training_bar() -> Iterator[Bar]:
    """A bar on stderr; plain lines where there is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, *left, console=console, disable=not console.is_terminal) as progress:
        yield Bar(progress, console)
