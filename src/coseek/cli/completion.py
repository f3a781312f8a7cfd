"""Completion: what a shell completes behind `coseek`, and its installation. typer does both."""

import os
from collections.abc import Sequence

import typer
from typer.core import TyperCommand, TyperGroup

from coseek.cli.main import COMMANDS, described, program_of
from coseek.core.plugins import plugin_names

_app = typer.Typer()


@_app.callback()
def _coseek() -> None:
    """The group that has the options of the installation."""


def complete(arguments: Sequence[str]) -> int:
    """Install or show the completion, or answer a shell that asks. Imports only the command that the line names."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    named = line.split()[1:2]
    group = typer.main.get_command(_app)
    assert isinstance(group, TyperGroup)
    for name in plugin_names(COMMANDS):
        group.commands[name] = TyperCommand(name, help=described(name)[1])
        if [name] == named:
            group.commands[name] = program_of(name)
    try:
        group.main([*arguments], prog_name="coseek")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    return 0
