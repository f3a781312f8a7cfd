"""Terminal: output, typed settings and progress bars of all commands. Results go to stdout, everything else to stderr,
and all of it through `visible`. The *volume* is how much a command prints besides its result (`--quiet`, `--verbose`).
"""

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table as RichTable
from typer import Option

from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, apply_overrides
from coseek.core.text import visible, visible_json

if TYPE_CHECKING:
    from coseek.measure.table import Table


class Volume(IntEnum):
    """What goes to stderr besides warnings and errors."""

    QUIET = 0
    """No progress and no notes."""
    NORMAL = 1
    VERBOSE = 2
    """A line for every report of progress, and the messages of libraries."""


QUIET_LIBRARIES = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Environment variables that silence libraries unless `--verbose`. Libraries read them at import. The user's values
win."""
_volume = Volume.NORMAL


def volume() -> Volume:
    """The volume of the running command."""
    return _volume


def set_volume(wanted: Volume) -> None:
    """Set the volume until the next command. Unless `--verbose`, libraries are silent and the package only warns."""
    global _volume
    _volume = wanted
    verbose = wanted is Volume.VERBOSE
    logging.getLogger("coseek").setLevel(logging.INFO if verbose else logging.WARNING)
    for variable, value in () if verbose else QUIET_LIBRARIES.items():
        os.environ.setdefault(variable, value)


Clock: TypeAlias = Callable[[], float]
"""A monotonic clock, in seconds."""

QUIET_S = 20.0
"""Minimum number of seconds between two progress lines of a stage. The last step always has a line."""
WIDE = 10_000
"""Columns of a file or a pipe, so that nothing is truncated or wrapped."""

AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print the result as JSON, for programs.")]
"""Type of the option `--json`."""


def new_app() -> typer.Typer:
    """Create a command with the settings of all commands: `-h`, help as Markdown, plain tracebacks for bugs."""
    # Rich markup would drop the square brackets in `[a.b=c …]`; Markdown keeps them.
    return typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def tell(text: str) -> None:
    """Print a line of the result to stdout."""
    print(visible(text), flush=True)


def shell_word(word: object) -> str:
    """Quote a word of a command for a shell: names may contain blanks or a `$`."""
    return quote(str(word))


def next_index(data: Path) -> str:
    """The line that suggests to index a new data set."""
    return f"Next: coseek index {shell_word(data)} --out {shell_word(f'{data}-bm25')}"


def say(text: str) -> None:
    """Print a line to stderr."""
    print(visible(text), file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print a line about progress to stderr, unless `--quiet`."""
    if volume() is not Volume.QUIET:
        say(text)


def print_json(value: Json) -> None:
    """Print the result as one JSON document to stdout."""
    print(visible_json(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)))


def show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a bug, whose message may contain any text. For `sys.excepthook`."""
    say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


class _Console(Console):
    """Makes control characters in texts visible. Colours and movements of rich itself pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class _Stdout(_Console):
    """Raises `BrokenPipeError` if the reader closed the pipe (`| head`), which `main` treats as success."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout_console() -> Console:
    """A console for tables. Create it at each use, so that it writes to the current `sys.stdout`."""
    return _lift_width_limit(_Stdout(highlight=False))


def show(shown: Iterable["Table | RichTable | str"]) -> None:
    """Print lines, and tables without headings."""
    for item in shown:
        if isinstance(item, str):
            tell(item)
        else:
            stdout_console().print(item if isinstance(item, RichTable) else item.rich())


def output(as_json: bool, tree: Json, shown: Iterable["Table | RichTable | str"]) -> None:
    """Print a result as JSON, or as its tables and lines."""
    if as_json:
        print_json(tree)
    else:
        show(shown)


def stderr_console(quiet: bool = False) -> Console:
    """A console for messages and progress."""
    return _lift_width_limit(_Console(stderr=True, highlight=False, quiet=quiet))


def _lift_width_limit(console: Console) -> Console:
    """Lift rich's limit of 80 columns if the output is a file or a pipe, unless COLUMNS sets a width."""
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def assignments(texts: Iterable[str], onto: JsonObject | None = None, kind: type[Settings] | None = None) -> JsonObject:
    """Apply `a.b=c` arguments (values are YAML) to the tree `onto`, by default an empty one, of settings of `kind`."""
    return apply_overrides({} if onto is None else onto, list(texts), kind)


def stamped(line: str) -> str:
    """Prefix a line with date, time and zone."""
    return f"{datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')} {line}"


@dataclass
class StageTimer:
    """Measures the pace of one stage, and decides when a progress line is due."""

    name: str
    total: int | None = None
    done: int = 0
    clock: Clock = time.monotonic
    _began: float = field(init=False, default=0.0)
    _first: tuple[float, int] | None = None
    """(time, done) at the first report. Steps of an earlier attempt do not count for the pace."""
    _printed_at: float | None = None

    def __post_init__(self) -> None:
        self._began = self.clock()

    def due(self, wait_s: float = 0.0) -> bool:
        """Whether a line is due now: first after `wait_s` seconds, then every `QUIET_S`, and at the end.

        Always under `--verbose`, never under `--quiet`.
        """
        now = self.clock()
        self._first = self._first or (now, self.done)
        printed_recently = self._printed_at is not None and now - self._printed_at < QUIET_S and self.done != self.total
        is_too_soon = now - self._began < wait_s or printed_recently
        if volume() is Volume.QUIET or (is_too_soon and volume() is not Volume.VERBOSE):
            return False
        self._printed_at = now
        return True

    def line(self, note: str = "") -> str:
        """Format a line: `questions 120/512, 0:04:10 left, EM .41`."""
        count = f"{self.name} {self.done}" + (f"/{self.total}" if self.total is not None else "")
        left_s = self.left_s
        remaining = "" if left_s is None else f"{timedelta(seconds=round(left_s))} left"
        return ", ".join(filter(None, (count, remaining, note.strip())))

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at the current pace; `None` before the first progress and at the end."""
        first_time, first_done = self._first or (self._began, 0)
        if self.total is None or not first_done < self.done < self.total:
            return None
        return (self.clock() - first_time) / (self.done - first_done) * (self.total - self.done)


class Bars:
    """One bar per kind of work. Without a terminal, long work prints a line now and then, and short work none."""

    def __init__(self, progress: Progress, plain: bool, clock: Clock) -> None:
        self._progress, self._plain, self._clock = progress, plain, clock
        self._tasks: dict[str, tuple[TaskID, StageTimer]] = {}

    def report(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` are finished. The first report adds the bar; `what` is text, not markup."""
        if what not in self._tasks:
            # `done` may be above 0, of an earlier attempt, which does not count for the time left.
            task = self._progress.add_task(escape(visible(what)), total=total, completed=done)
            self._tasks[what] = task, StageTimer(what, total, done, self._clock)
        task, timer = self._tasks[what]
        timer.total, timer.done = total, done
        self._progress.update(task, completed=done, total=total)
        if self._plain and timer.due(wait_s=QUIET_S):
            say(stamped(timer.line()))


class Bar:
    """The progress of a training, with stages. Implements `coseek.core.progress.Progress`."""

    def __init__(self, progress: Progress, console: Console, clock: Clock) -> None:
        self._progress, self._console, self._clock = progress, console, clock
        self._task: TaskID | None = None
        self._began = clock()
        self._timer = StageTimer("")

    def stage(self, name: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._timer = StageTimer(name, total, clock=self._clock)
        self._task = self._progress.add_task(visible(name), total=total, note="")

    def advance(self, done: int, note: str = "") -> None:
        assert self._task is not None
        self._progress.update(self._task, completed=done, note=visible(note))
        self._timer.done = done
        if _prints_lines(self._console) and self._timer.due():
            self.say(self._timer.line(note))

    def say(self, line: str) -> None:
        """Print a line, unless `--quiet`; after the minutes since the start in a terminal, after date and time in a
        file."""
        self._print(line, self._console)

    def warn(self, line: str) -> None:
        """Print a line, even under `--quiet`."""
        self._print(line, self._console if volume() is not Volume.QUIET else stderr_console())

    def _print(self, line: str, console: Console) -> None:
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        text = f"{minutes:2d}:{seconds:02d} {line}" if console.is_terminal else stamped(line)
        console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(clock: Clock = time.monotonic) -> Iterator[Bars]:
    """Show bars with counts and the time left on stderr; without a terminal, a line every 20 seconds."""
    with _progress() as (progress, console):
        yield Bars(progress, _prints_lines(console), clock)


@contextmanager
def training_bar(clock: Clock = time.monotonic) -> Iterator[Bar]:
    """Do the same for a training, which has stages."""
    with _progress(TextColumn("{task.fields[note]}")) as (progress, console):
        yield Bar(progress, console, clock)


@contextmanager
def _progress(*more_columns: ProgressColumn) -> Iterator[tuple[Progress, Console]]:
    console = stderr_console(quiet=volume() is Volume.QUIET)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    timing = (TextColumn("left"), TimeRemainingColumn(), *more_columns)
    with Progress(*columns, *timing, console=console, disable=not console.is_terminal) as progress:
        yield progress, console


def _prints_lines(console: Console) -> bool:
    """Whether progress is printed in lines: without a terminal instead of bars, under `--verbose` in addition to
    them."""
    return not console.is_terminal or volume() is Volume.VERBOSE


@contextmanager
def resumable(how: str) -> Iterator[None]:
    """If the block is stopped, print how to resume it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)(how) from None
