"""Options: arguments and options that several commands share. Commands that can name a model server by its URL get
`--model`, `--key-env` and `--no-send`; all expand `~/` in paths where the shell does not (`--out=~/runs`)."""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from coseek.cli.terminal import Volume, assignments, set_volume
from coseek.core.connections import is_url
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject, expand_home
from coseek.core.plugins import find_plugin
from coseek.core.settings import apply_overrides, dump_settings, make_settings
from coseek.data.dataset import QuestionFilter

if TYPE_CHECKING:
    from coseek.agents.factory import AgentSettings
    from coseek.agents.limits import Limits
    from coseek.core.cluster import Cluster

RetrieverName: TypeAlias = Annotated[str, Option(help="An index folder, URL, YAML file, or `{retriever: NAME, …}`.")]
Temperature: TypeAlias = Annotated[
    float | None, Option(min=0.0, help="0 always takes the most likely token. [default: the agent's own, else 0]")
]
ProtocolName: TypeAlias = Annotated[str | None, Option(help="A protocol or a YAML file; default: the agent's own.")]
PromptTemplateName: TypeAlias = Annotated[str | None, Option(help="A template or YAML file; default: the agent's.")]
TokenizerName: TypeAlias = Annotated[str | None, Option(help="For a server: the folder of its model, or `bytes`.")]
Split: TypeAlias = Annotated[str | None, Option(help="The split of a data-set folder.")]
Count: TypeAlias = Annotated[int | None, Option(min=1, help="Draw N questions, in proportion to the data sets.")]
Select: TypeAlias = Annotated[
    list[str] | None,
    Option(metavar="NAME=VALUES", help="Only these: sources=nq,hotpotqa, hops=2,3 or types=bridge; may be repeated."),
]
Resume: TypeAlias = Annotated[bool, Option("--resume", help="Resume what is in --out.")]
OutFolder: TypeAlias = Annotated[Path, Option(help="The folder to write.")]
BootstrapSeed: TypeAlias = Annotated[int, Option(help="Seed of the bootstrap.")]
CacheFile: TypeAlias = Annotated[Path | None, Option(help="A SQLite cache of model outputs, across runs and labels.")]
DeviceName: TypeAlias = Annotated[str | None, Option(help="cpu, cuda, cuda:1 …; default: an accelerator, if any.")]
ClusterName: TypeAlias = Annotated[
    str | None,
    Option(metavar="ADDRESS", help="A Ray cluster: local, auto or ray://HOST:PORT, with ?cpus=2&gpus=1 per process."),
]
AnswerWith: TypeAlias = Annotated[
    str | None,
    Option(help="A frozen generator (shipped model, folder, URL or YAML file) that answers from each run's passages."),
]
BudgetTokens: TypeAlias = Annotated[int, Option(min=1, help="Passage tokens for the generator and budgeted_recall.")]
PromptFile: TypeAlias = Annotated[str | None, Option(help="The generator's prompt: a YAML file of your own.")]
JudgePromptFile: TypeAlias = Annotated[str, Option(help="The judge's prompt: a YAML file of your own.")]
OneJudge: TypeAlias = Annotated[
    str | None,
    Option(help="The judge: a model (shipped, folder, URL or YAML file), or a laptop world's folder (its oracle)."),
]


def pairs(help_text: str) -> ArgumentInfo:
    """An argument for settings, `NAME=VALUE …`."""
    argument: ArgumentInfo = Argument(metavar="NAME=VALUE", help=help_text)
    return argument


LimitPairs: TypeAlias = Annotated[list[str] | None, pairs("Limits, such as max_turns=6 or limits.max_turns=6.")]


def cluster_of(address: str | None) -> "AbstractContextManager[Cluster | None]":
    """Connect to the cluster of `--cluster` for a block; `None` without an address."""
    if address is None:
        return nullcontext()
    from coseek.core.cluster import cluster_at  # not at the top, since a run on one machine does not need it

    return cluster_at(address)


def agent_with_limits(
    name: str,
    protocol: str | None,
    prompt_template: str | None,
    tokenizer: str | None,
    device: str | None,
    temperature: float | None = None,
    limits: Sequence[str] | None = None,
) -> "tuple[AgentSettings, Limits]":
    """Return an agent's settings, and its default limits with the typed `NAME=VALUE` or `limits.NAME=VALUE` applied:
    for `ask`, `serve agent` and `serve mcp`.

    Raises `SettingError` for a scripted agent that needs more than the text of a question.
    """
    from coseek.agents.factory import CONTRACT, SCRIPTED, is_scripted, limits_for, settings_for  # not for help
    from coseek.agents.limits import Limits
    from coseek.agents.sources import CITED

    settings = settings_for(name, protocol, prompt_template, tokenizer, device, untrained=CITED)
    if temperature is not None:
        settings = settings.model_copy(update={"temperature": temperature})
    script = is_scripted(settings.name) and find_plugin("scripted agent", SCRIPTED, settings.name, CONTRACT)
    if needs := getattr(script, "NEEDS", ""):
        raise SettingError(
            f"the agent {settings.name!r} needs {needs}, and a typed question has none; take --agent extract, rules or "
            "a model folder, or ask the questions of a data set with `coseek run`"
        )
    typed = [text.removeprefix("limits.") for text in limits or ()]  # as in `coseek run`, where they are a group
    return settings, make_settings(Limits, assignments(typed, onto=dump_settings(limits_for(settings))))


def question_filter(texts: Sequence[str] | None) -> QuestionFilter:
    """Parse `--select`."""
    return make_settings(QuestionFilter, apply_overrides({}, texts or ()), typed=texts or ())


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def whole_numbers(option: str, text: str, least: int, example: str) -> list[int]:
    """Parse comma-separated whole numbers, and drop repeated ones. Raises `SettingError` for anything else."""
    names = split_names(text)
    if not names or not all(name.isdecimal() and int(name) >= least for name in names):
        raise SettingError(f"{option} {text!r} is not a list of whole numbers from {least} on, such as {example}")
    return list(dict.fromkeys(map(int, names)))


def _expand_paths(value: object) -> object:
    """Expand `~/` in paths. A text may also be a query, so it is expanded only if the path exists."""
    if isinstance(value, list):
        return [_expand_paths(item) for item in value]
    if isinstance(value, Path):
        return Path(expand_home(str(value)))
    if isinstance(value, str) and (path := expand_home(value)) != value and os.path.exists(path):
        return path
    return value


# --- servers

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., object])

_server_commands: set[Callable[..., object]] = set()
"""Functions of the commands that have the options."""
_server_settings: JsonObject = {}
"""The values of these options in the running command, as `with_settings` takes them."""


def takes_servers(command: F) -> F:
    """Decorate a command: it gets the three options, which `at_servers` adds to the names of its models."""
    _server_commands.add(command)
    return command


def at_servers(*names: str | None) -> Iterator[str | None]:
    """Yield the names, with the values of the options appended to those that are URLs.

    Raises `SettingError` if such an option is used and no name is a URL.
    """
    if _server_settings and not any(map(is_url, names)):
        raise SettingError("--model, --key-env and --no-send are for servers; name one by its URL: http://HOST:PORT")
    from coseek.models.server import with_settings  # not at the top, since help does not need the HTTP client

    return (with_settings(name, _server_settings) if is_url(name) else name for name in names)


def at_server(name: str) -> str:
    """Do the same for one name."""
    return str(next(at_servers(name)))


# --- options of every command


def with_shared_options(program: C) -> C:
    """Add `--quiet` and `--verbose` to every command of a program, and the options of servers to those that take
    servers; expand `~/` in paths. A command that has its own `--quiet` keeps it."""
    for command in leaves(program):
        for parameter in command.params:
            if parameter.callback is None:
                parameter.callback = lambda _context, _parameter, value: _expand_paths(value)
        run = command.callback
        assert run is not None
        existing_names = {name for parameter in command.params for name in parameter.opts}
        shared = [option for option in typer.main.get_command(_shared).params if not existing_names & {*option.opts}]
        if inspect.unwrap(run) not in _server_commands:
            shared = [option for option in shared if option.name in ("is_quiet", "is_verbose")]
        command.params += shared
        command.callback = _after_shared(run, [str(option.name) for option in shared])
    return program


def leaves(program: object) -> Iterator[TyperCommand]:
    """Yield the commands of a program, without groups."""
    if isinstance(program, TyperGroup):
        for command in program.commands.values():
            yield from leaves(command)
    elif isinstance(program, TyperCommand):
        yield program


def _after_shared(run: Callable[..., object], shared: Sequence[str]) -> Callable[..., object]:
    """Wrap the function of a command, so that its shared options are applied first."""

    def run_with_shared(**values: object) -> object:
        apply = typer.main.get_command(_shared).callback
        assert apply is not None
        apply(**{name: values.pop(name) for name in shared})
        return run(**values)

    return run_with_shared


_shared = typer.Typer(add_completion=False)


@_shared.command(add_help_option=False)
def _apply_shared(
    is_quiet: Annotated[bool, Option("--quiet", "-q", help="Warnings only, no progress.")] = False,
    is_verbose: Annotated[bool, Option("--verbose", "-v", help="All progress, and messages of libraries.")] = False,
    model: Annotated[str | None, Option(help="The model's name at the servers that this command names by URL.")] = None,
    key_env: Annotated[str | None, Option(metavar="NAME", help="The environment variable with their key.")] = None,
    no_send: Annotated[
        list[str] | None,
        Option(metavar="FIELD", help="A field that they refuse, such as temperature or seed; may be repeated."),
    ] = None,
) -> None:
    """Apply the options that commands share."""
    set_volume(Volume.VERBOSE if is_verbose else Volume.QUIET if is_quiet else Volume.NORMAL)
    _server_settings.clear()
    _server_settings.update({name: text for name, text in (("model", model), ("key_env", key_env)) if text is not None})
    _server_settings.update({f"send.{field}": None for field in no_send or ()})
