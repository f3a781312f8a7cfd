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

from coseek.cli.log_lines import Clock, StageTimer, stamped
from coseek.cli.terminal import stderr_console


class Bar:
    """Implements `coseek.core.progress.Progress`."""

    def __init__(self, progress: Progress, console: Console, clock: Clock) -> None:
        self._progress, self._console, self._clock = progress, console, clock
        self._task: TaskID | None = None
        self._began = clock()
        self._pace = StageTimer("")

    def stage(self, name: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._pace = StageTimer(name, total, clock=self._clock)
        self._task = self._progress.add_task(name, total=total, note="")

    def advance(self, done: int, note: str = "") -> None:
        assert self._task is not None
        self._progress.update(self._task, completed=done, note=note)
        self._pace.done = done
        if not self._console.is_terminal and self._pace.due():
            self.say(self._pace.line(note))

    def say(self, line: str) -> None:
        """With the minutes since the beginning in a terminal, and with the date and the time in a file."""
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        shown = f"{minutes:2d}:{seconds:02d} {line}" if self._console.is_terminal else stamped(line)
        self._console.print(shown, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def training_bar(clock: Clock = time.monotonic) -> Iterator[Bar]:
    """A bar on stderr; plain lines where there is no terminal."""
    console = stderr_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, *left, console=console, disable=not console.is_terminal) as progress:
        yield Bar(progress, console, clock)
