"""Server options: `--model`, `--key-env` and `--no-send` of every command that can name a model server by its URL."""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

import typer

from coseek.cli.volume import add_options, leaves
from coseek.core.connections import is_url
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., object])

_taking: set[Callable[..., object]] = set()
"""Functions of the commands that get the options."""
_given: JsonObject = {}
"""Settings that the running command was given, as `with_settings` takes them."""


def takes_servers(command: F) -> F:
    """Give a command the three options; `at_servers` applies them to the names that it was given."""
    _taking.add(command)
    return command


def at_servers(*names: str | None) -> Iterator[str | None]:
    """Yield the names, with the options put behind those that are URLs.

    Raises `SettingError` where an option is given and no name is a URL.
    """
    if _given and not any(map(is_url, names)):
        raise SettingError("--model, --key-env and --no-send are for servers; name one by its URL: http://HOST:PORT")
    from coseek.models.server import with_settings  # the HTTP client, which no help needs

    return (with_settings(name, _given) if is_url(name) else name for name in names)


def at_server(name: str) -> str:
    """Do the same for one name."""
    return str(next(at_servers(name)))


def with_server_options(program: C) -> C:
    """Add the options to the commands of a program that take servers, and forget those of an earlier command."""
    _given.clear()
    for command in leaves(program):
        if command.callback is not None and inspect.unwrap(command.callback) in _taking:
            add_options(command, _template)
    return program


def _model(value: str | None) -> None:
    if value is not None:
        _given["model"] = value


def _key_env(value: str | None) -> None:
    if value is not None:
        _given["key_env"] = value


def _no_send(value: list[str] | None) -> None:
    _given.update({f"send.{field}": None for field in value or ()})


_template = typer.Typer(add_completion=False)


@_template.command(add_help_option=False)
def _options(
    model: Annotated[
        str | None,
        typer.Option(
            help="The model's name at the servers that this command names by URL.", callback=_model, expose_value=False
        ),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment variable with those servers' key.",
            callback=_key_env,
            expose_value=False,
        ),
    ] = None,
    no_send: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="A field that those servers refuse, such as temperature or seed; may be repeated.",
            callback=_no_send,
            expose_value=False,
        ),
    ] = None,
) -> None:
    """The options."""
