"""Volume: how much a command prints beside its result. `--quiet` and `--verbose` of every command."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

C = TypeVar("C")


class Volume(IntEnum):
    """What goes to stderr beside warnings and errors."""

    QUIET = 0
    """No progress and no notes."""
    NORMAL = 1
    VERBOSE = 2
    """A line at every report of progress, and the messages of libraries."""


_now = Volume.NORMAL


def volume() -> Volume:
    """The volume of the command that is running."""
    return _now


def set_volume(wanted: Volume) -> None:
    """Set the volume until the next command."""
    global _now
    _now = wanted


def _quiet(value: bool) -> None:
    if value:
        set_volume(Volume.QUIET)


def _verbose(value: bool) -> None:
    if value:
        set_volume(Volume.VERBOSE)


_template = typer.Typer(add_completion=False)


@_template.command(add_help_option=False)
def _options(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Warnings only, no progress.", callback=_quiet, expose_value=False)
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Show all progress, and the messages of libraries.",
            callback=_verbose,
            expose_value=False,
        ),
    ] = False,
) -> None:
    """The options that every command gets."""


def with_volume(program: C) -> C:
    """Give every command of a program the two options; one with a `--quiet` of its own keeps that."""
    for command in leaves(program):
        add_options(command, _template)
    return program


def add_options(command: TyperCommand, template: typer.Typer) -> None:
    """Add the options of `template`, a command that only declares them, unless the command has its own of a name."""
    taken = {name for param in command.params for name in param.opts}
    command.params += [param for param in typer.main.get_command(template).params if not taken & {*param.opts}]


def leaves(program: object) -> Iterator[TyperCommand]:
    """Yield the commands of a program that are no groups."""
    if isinstance(program, TyperGroup):
        for command in program.commands.values():
            yield from leaves(command)
    elif isinstance(program, TyperCommand):
        yield program
