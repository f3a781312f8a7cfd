"""Terminal: what every command shares. Results go to stdout, everything said along the way to stderr."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from coseek.cli.log_lines import QUIET_S, Clock, StageTimer, stamped
from coseek.core.files import Json, JsonObject
from coseek.core.settings import apply_overrides

WIDE = 10_000
"""Columns of a file or a pipe: nothing is cut or folded."""

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
"""Type of the `--json` option of every command that has one."""


def new_app() -> typer.Typer:
    """An empty command with the habits of the house: `-h`, plain text in help, tracebacks for bugs."""
    # Rich markup would eat the square brackets of `[a.b=c …]`; Markdown leaves them alone.
    return typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def say(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Json) -> None:
    """The result for a program that reads: one JSON document on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


class _Console(Console):
    """Leaves a reader that has gone (`| head`) to the program, which knows that it is no failure."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout_console() -> Console:
    """For tables. Made when asked for, so that it writes to the stdout of now."""
    return _uncut(_Console(highlight=False))


def stderr_console(quiet: bool = False) -> Console:
    """For what is said along the way."""
    return _uncut(Console(stderr=True, highlight=False, quiet=quiet))


def _uncut(console: Console) -> Console:
    """The console, in a file or a pipe as wide as its text, unless COLUMNS says how wide: the library cuts at 80."""
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def assignments(texts: Iterable[str], onto: JsonObject | None = None) -> JsonObject:
    """`a.b=c` arguments as a tree of settings, put into `onto` when it is given; values are YAML."""
    return apply_overrides({} if onto is None else onto, list(texts))


def display_path(path: Path) -> str:
    """A path as a person would type it: seen from the working folder where it lies below that."""
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)


class Bars:
    """A bar for each task; a line now and then where there is no terminal. Short work says nothing there."""

    def __init__(self, progress: Progress, plain: bool, clock: Clock) -> None:
        self._progress, self._plain, self._clock = progress, plain, clock
        self._paces: dict[TaskID, StageTimer] = {}

    def add_task(self, description: str, total: int | None = None, completed: int = 0) -> TaskID:
        """A new bar; its total may be known later. The description is text, not markup."""
        task = self._progress.add_task(escape(description), total=total, completed=completed)
        self._paces[task] = StageTimer(description, total, completed, self._clock)
        return task

    def update(self, task: TaskID, completed: int, total: int | None = None) -> None:
        """So many are done."""
        pace = self._paces[task]
        pace.total, pace.done = pace.total if total is None else total, completed
        self._progress.update(task, completed=completed, total=pace.total)
        if self._plain and pace.due(wait_s=QUIET_S):
            say(stamped(pace.line()))

    def advance(self, task: TaskID, more: int) -> None:
        """So many more are done."""
        self.update(task, self._paces[task].done + more)


class StageBars:
    """One bar for each kind of work, made when its first count is reported."""

    def __init__(self, progress: Bars) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            # What an earlier attempt did took no time now: the time left is told from what is still to do.
            self._tasks[what] = self._progress.add_task(what, total=total, completed=done)
        self._progress.update(self._tasks[what], completed=done)


@contextmanager
def progress_bar(clock: Clock = time.monotonic) -> Iterator[Bars]:
    """A bar with counts and the time left, on stderr; a line now and then when nobody looks at a terminal."""
    console = stderr_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *left, console=console, disable=not console.is_terminal) as progress:
        yield Bars(progress, not console.is_terminal, clock)


@contextmanager
def resumable(how_to_go_on: str) -> Iterator[None]:
    """On Ctrl-C, say that nothing finished was lost and how to go on; the program then ends with 130."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nstopped; what was finished is kept. Go on with: {how_to_go_on}")
        raise
