"""The program `coseek`: finds a command by the name of its file, runs it, and turns errors into exit codes.

    0    success
    1    the program could not continue (`RunError`, a failed part)
    2    a mistake that the user can fix: one sentence with the way out
    130  Ctrl-C
    143  SIGTERM

Only the named command is imported, so help is fast and torch is imported only if needed. A bug shows its traceback.
"""

import ast
import errno
import importlib.util
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from coseek import __version__
from coseek.cli.options import with_shared_options
from coseek.cli.terminal import say, show_traceback, tell
from coseek.core.errors import CoseekError, DiskFault, SettingError, UnknownName, UserError, missing_extras
from coseek.core.plugins import find_plugin, plugin_names
from coseek.core.settings import mistakes
from coseek.core.strict_json import replace_surrogates

COMMANDS = "coseek.cli.commands"
COMPLETE = "_COSEEK_COMPLETE"
"""The variable in which a shell requests completion; typer chose the name."""
_WAYS_OUT = {
    "nothing was overwritten; free some space and try again": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "choose a folder that you can read and write": (errno.EACCES, errno.EPERM, errno.EROFS),
    "choose another place": (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
    "it is a link to itself; remove it, or choose another place": (errno.ELOOP,),
}
DISK_FAULTS = {number: way_out for way_out, numbers in _WAYS_OUT.items() for number in numbers}
"""Error number of the file system that a user can fix → the way out. Other `OSError`s are bugs."""


class StderrHandler(logging.Handler):
    """Prints the package's messages as plain lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def main(argv: Sequence[str] | None = None) -> int:
    """Run `coseek ARGV…`. Returns the exit code."""
    log = logging.getLogger("coseek")
    if not any(isinstance(handler, StderrHandler) for handler in log.handlers):
        log.addHandler(StderrHandler())
    sys.excepthook = show_traceback
    try:
        with sigterm_as_stop():
            code = dispatch(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()  # here, since a closed pipe is handled below
            return code
    except UserError as error:
        return complain(error, code=2)
    except ValidationError as error:  # of settings that were derived from others, not read by `make_settings`
        return complain(SettingError(*(sentence for _, sentence in mistakes(error))), code=2)
    except CoseekError as error:
        return complain(error, code=1)
    except KeyboardInterrupt as stop:
        resume = f"finished work is kept. Resume with: {stop}" if stop.args else "the same command starts again"
        say(f"\nstopped; {resume}")
        return 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:
        # The reader closed the pipe (`coseek search … | head`). Python would report this again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if (way_out := DISK_FAULTS.get(error.errno or 0)) is None:
            raise
        path = error.filename2 or error.filename or "the disk"  # the target of a rename
        return complain(DiskFault(f"{path}: {error.strerror}; {way_out}"), code=2)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def sigterm_as_stop() -> Iterator[None]:
    """Raise `Terminated` at SIGTERM in the block. No-op outside the main thread, or if there is a handler already."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def complain(error: CoseekError, code: int) -> int:
    """Print one line per mistake to stderr, even if a message contains newlines. Returns the code."""
    for sentence in error.sentences if isinstance(error, UserError) else (str(error),):
        say(f"coseek: {' '.join(sentence.split())}")
    return code


def dispatch(arguments: Sequence[str]) -> int:
    """Print the help or the version, complete words, or run the command."""
    for number, argument in enumerate(arguments, start=1):
        if replace_surrogates(argument) != argument:  # Python decodes bytes that are not UTF-8 as surrogates
            raise UserError(
                f"argument {number} ({replace_surrogates(argument)!r}) is not UTF-8 text; write or rename it as UTF-8"
            )
    if COMPLETE in os.environ or (arguments and arguments[0] in ("--install-completion", "--show-completion")):
        return complete(arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("--help", "-h"):
        tell(overview())
        return 0
    if arguments[0] in ("--version", "-V"):
        tell(f"coseek {__version__}")
        return 0
    return run_command(arguments[0], arguments[1:])


_NO_SUBCOMMAND = re.compile(r"No such command '(.*?)'")


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run one command. Errors name the help page for a wrong option, and the install command for a missing library."""
    try:
        with missing_extras(f"`coseek {name}`"):
            program = program_of(name)
            # Not `program.main`, which has its own handling of Ctrl-C and closed pipes.
            with program.make_context(f"coseek {name}", list(arguments)) as context:
                code = program.invoke(context)
    except typer.Exit as done:  # --help
        return done.exit_code
    except typer.TyperException as error:
        context_of_error = getattr(error, "ctx", None)  # of the subcommand, if there is one
        path = context_of_error.command_path if context_of_error else f"coseek {name}"
        match = _NO_SUBCOMMAND.match(error.format_message())
        if match and context_of_error and isinstance(context_of_error.command, TyperGroup):
            raise unknown_subcommand(path, match[1], context_of_error.command) from None
        cause = error.__cause__  # has the refused value, which typer's message omits
        value = f", got {cause.errors()[0]['input']!r}" if isinstance(cause, ValidationError) else ""
        raise UserError(f"{error.format_message().rstrip('.')}{value}; see `{path} --help`") from None
    return code if isinstance(code, int) else 0


def unknown_subcommand(path: str, word: str, group: TyperGroup) -> UserError:
    """The error for a word that is not a command of a group. After `coseek train` people type an agent's recipe."""
    if path == "coseek train":
        from coseek.pipelines.agent_recipe import recipe_names

        if word in recipe_names():
            return UserError(f"{word!r} is a recipe of agents: coseek train agent {word}")
    return UnknownName(f"command of `{path}`", word, group.commands)


def program_of(name: str) -> TyperCommand | TyperGroup:
    """Import a command, and add the options that commands share."""
    program = typer.main.get_command(find_plugin("command", COMMANDS, name).app)
    assert isinstance(program, TyperCommand | TyperGroup)
    return with_shared_options(program)


GROUPS = ("Start here", "Data and indexes", "Agents", "Training", "Results", "Your own parts", "Sharing")
"""Headings of `coseek help`, in order. A command's file names its group as `GROUP`."""
OVERVIEW = """\
coseek: train search agents and the retrievers that serve them, and measure both.

usage: coseek COMMAND …      `coseek help COMMAND` explains a command, with an example

{}
New here? `coseek demo` shows a search agent at work; `coseek quickstart` trains one.
`coseek --install-completion` lets this shell complete commands and options."""


def overview() -> str:
    """Format the text of `coseek --help`: commands by group, each with the first line of its file."""
    commands = {name: command_about(name) for name in plugin_names(COMMANDS)}
    width = max(map(len, commands))
    by_group: dict[str, str] = dict.fromkeys(GROUPS, "")
    for name, (group, about) in commands.items():
        by_group[group] = f"{by_group.get(group, '')}  {name:<{width}}  {about}\n"
    return OVERVIEW.format("\n".join(f"{group}:\n{lines}" for group, lines in by_group.items() if lines))


def command_about(name: str) -> tuple[str, str]:
    """Read a command's group and the first line of its docstring, without importing it."""
    spec = importlib.util.find_spec(f"{COMMANDS}.{name.replace('-', '_')}")
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    group = re.search(r'^GROUP = "(.+)"$', text, flags=re.MULTILINE)
    return group[1] if group else "More", (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def complete(arguments: Sequence[str]) -> int:
    """Install or show the completion script, or complete a line for a shell. Imports only the command on that line."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    typed = line.split()[1:2]
    group = typer.main.get_command(typer.Typer(callback=lambda: None))
    assert isinstance(group, TyperGroup)
    for name in plugin_names(COMMANDS):
        group.commands[name] = TyperCommand(name, help=command_about(name)[1])
        if [name] == typed:
            group.commands[name] = program_of(name)
    try:
        group.main([*arguments], prog_name="coseek")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
