"""Terminal: what every command shares. Results go to stdout, everything said along the way to stderr."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias, cast

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coseek.data.errors import SettingError
from coseek.data.files import Json, JsonObject
from coseek.data.settings import put

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
    return _Console(highlight=False)


def assignments(texts: Iterable[str], onto: JsonObject | None = None) -> JsonObject:
    """`a.b=c` arguments as a tree of settings, put into `onto` when it is given; values are YAML."""
    tree: JsonObject = {} if onto is None else onto
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingError(f"{text!r} is not a setting; write name=value")
        try:
            put(tree, name.split("."), cast(Json, yaml.safe_load(value)))
        except yaml.YAMLError:
            raise SettingError(f"the value of {text!r} is not valid YAML; put quotes around it") from None
    return tree


def display_path(path: Path) -> str:
    """A path as a person would type it: seen from the working folder where it lies below that."""
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with counts and the time left, on stderr; silent when nobody looks at a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *left, console=console, disable=not console.is_terminal) as progress:
        yield progress


@contextmanager
def resumable(how_to_go_on: str) -> Iterator[None]:
    """On Ctrl-C, say that nothing finished was lost and how to go on; the program then ends with 130."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nstopped; what was finished is kept. Go on with: {how_to_go_on}")
        raise
