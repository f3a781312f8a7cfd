"""Tool: what an agent can call during an episode. One file per tool, in `agents/tools` or at a user's own `.py` path.

The module of a tool offers:

    SETTINGS                            a subclass of `ToolSettings`
    parse(arguments, settings)          the call's JSON arguments -> `ParsedCall`
    run(requests, settings, context)    N requests -> N results: a JSON value each, or `ToolFault` for a failed request
    render(result, settings, context)   one result -> text for the agent
    schema(settings)                    optional, for agents with native tool calls: `{"description": …,
                                        "parameters": a JSON schema of the arguments}`

`render` returns text, which is escaped, tokenised as data and cut to `max_observation_tokens`. The built-in tools
return token ids, because the prompt template cuts their documents one by one. An exception in a user's file is a
fault of that call: it is recorded, ends the episode with `tool_error`, and is never scored.

A typed function with a docstring is also a tool (`tool_name`) with the function's name, arguments and description.
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from coseek.agents.limits import Limits
from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.plugins import (
    PluginSpec,
    called,
    check_plain,
    find_plugin,
    is_function,
    is_plugin_path,
    offer,
    unwrapped,
)
from coseek.core.settings import Settings, make_settings, mistakes
from coseek.core.strict_json import InvalidJson, parse_strict, replace_surrogates
from coseek.data.passage import Passage
from coseek.data.trajectory import Search, Visit
from coseek.models.model import Tokenizer
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever

if TYPE_CHECKING:
    from coseek.agents.prompt_template import PromptTemplate

PACKAGE = "coseek.agents.tools"
P = ParamSpec("P")
T = TypeVar("T")


class ToolSettings(Settings):
    """Base of the settings of every tool."""

    overlaps: ClassVar[bool] = True
    """Whether `rollout(overlap=True)` runs it in a thread while the model writes."""
    max_calls: int | None = Field(default=None, ge=1)
    """Maximum number of calls of this tool per episode. A further call counts as a turn without an action."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """The parsed arguments of a call."""

    arguments: JsonObject | None = None
    """The arguments in the form that `run` takes; `None` when the call cannot be carried out."""
    problem: str = ""
    """What is wrong with the call. It is shown to the agent and makes the trajectory invalid."""


@dataclass(frozen=True, slots=True)
class ToolFault:
    """The tool failed, so there is no result."""

    message: str


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One call and the state of its episode."""

    arguments: JsonObject
    """The arguments that `parse` returned."""
    turn: int
    """Number of the agent's turn that made the call, from 1; 0 for the search that opens an episode."""
    query: Query
    """Context passed to the retriever: question, reasoning and earlier searches. The query text is empty."""
    searches: tuple[Search, ...] = ()
    """The episode's searches so far."""
    fault: str = ""
    """Why `parse` failed; such a request is not run."""
    visits: tuple[Visit, ...] = ()
    """The episode's visits so far that showed more than the passage found."""


@dataclass(frozen=True)
class ToolContext:
    """The parts of a rollout that a tool can use."""

    retriever: Retriever
    limits: Limits
    template: "PromptTemplate"
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class TurnSearches:
    """Result of `search`: the queries of one turn and their searches."""

    queries: tuple[Query, ...]
    searches: tuple[Search, ...]
    before: int = 0
    """Number of documents that earlier turns showed."""


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Result of `visit`: a page of a passage."""

    passage: Passage | None
    """`None` if the episode has not found it."""
    ident: str
    page: int
    """From 1."""
    document: tuple[Passage, ...] = ()
    """The passage and those of its document that are shown with it, in order; empty if it is shown alone."""


Result: TypeAlias = "TurnSearches | DocumentPage | ToolFault | Json"


class ToolModule(Protocol):
    """Contents of a tool's module."""

    SETTINGS: type[ToolSettings]

    def parse(self, arguments: JsonObject, settings: ToolSettings) -> ParsedCall: ...

    def run(self, requests: Sequence[ToolRequest], settings: ToolSettings, context: ToolContext) -> list[Result]: ...

    def render(self, result: Result, settings: ToolSettings, context: ToolContext) -> str | tuple[int, ...]: ...


CONTRACT: PluginSpec = {"SETTINGS": ToolSettings, "parse": None, "run": None, "render": None}


@dataclass(frozen=True, eq=False)
class Tool:
    """A tool with its name and settings in a protocol."""

    name: str
    """The name by which the agent calls it."""
    module: ToolModule
    settings: ToolSettings
    own: bool = False
    """Whether it is a user's file, whose exceptions are faults. An exception of a built-in tool is a bug."""

    def parse(self, arguments: JsonObject) -> "ParsedAction":
        """Parse the arguments of a call."""
        parsed = self._guard(self.module.parse, arguments, self.settings)
        if self.own and not isinstance(parsed, ToolFault):
            parsed = _checked_call(parsed)
        if isinstance(parsed, ToolFault):
            return ParsedAction(ToolCall(self, arguments, parsed.message))
        call = None if parsed.arguments is None else ToolCall(self, parsed.arguments)
        return ParsedAction(call, parsed.problem)

    @cached_property
    def schema(self) -> JsonObject:
        """The tool's schema for chat templates and servers. A module without `schema` is described by its first line
        and takes any arguments. Raises `SettingError` for a schema that is not a JSON object."""
        make = getattr(self.module, "schema", None)
        about = (self.module.__doc__ or "").strip().partition("\n")[0]
        raw = self._guard(make, self.settings) if make else {"description": about, "parameters": {"type": "object"}}
        plain = _as_json_value(raw)
        if not isinstance(plain, dict):
            reason = plain.message if isinstance(plain, ToolFault) else type(plain).__name__
            raise SettingError(
                f"tools.{self.name}: schema must return an object with description and parameters: {reason}"
            )
        return {"type": "function", "function": {"name": self.name, **plain}}

    def run(self, requests: Sequence[ToolRequest], context: ToolContext) -> list[Result]:
        """Run a batch and return its results in order.

        When the whole batch fails, its requests are run one by one, so that a bad request does not affect the others.
        """
        results = iter(self._run([request for request in requests if not request.fault], context))
        return [ToolFault(request.fault) if request.fault else next(results) for request in requests]

    def render(self, result: Result, context: ToolContext) -> tuple[int, ...] | ToolFault:
        """The token ids of an observation that shows a result."""
        rendered = self._guard(self.module.render, result, self.settings, context)
        if isinstance(rendered, ToolFault) or (isinstance(rendered, tuple) and not self.own):
            return rendered
        if not isinstance(rendered, str) or replace_surrogates(rendered) != rendered:
            return ToolFault(f"render returned {type(rendered).__name__} that is no Unicode text")
        return context.template.result_ids(context.tokenizer, rendered, context.limits.max_observation_tokens)

    def _run(self, requests: Sequence[ToolRequest], context: ToolContext) -> list[Result]:
        if not requests:
            return []
        results = self._guard(self.module.run, requests, self.settings, context)
        if isinstance(results, list) and len(results) == len(requests):
            return list(map(_as_json_value, results)) if self.own else results
        if len(requests) > 1:
            return [result for request in requests for result in self._run([request], context)]
        return [
            results if isinstance(results, ToolFault) else ToolFault(f"run returned no list of {len(requests)} results")
        ]

    def _guard(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | ToolFault:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not self.own:
                raise
            return ToolFault(_one_line(f"{type(error).__name__}: {error}"))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the agent."""

    tool: Tool
    arguments: JsonObject
    fault: str = ""
    """The exception that the tool's `parse` raised."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """The call that the text of a tag asks for, and a problem with its form."""

    call: ToolCall | None = None
    problem: str = ""


def open_tool(
    name: str, tree: JsonObject, source: str = "", folder: Path = Path(), *, run_files: bool = False
) -> Tool | None:
    """Open the tool that a protocol calls `name` and describes as `{tool: NAME OR FILE, …settings}`.

    A `.py` path is relative to `folder`. Such a file is run only with `run_files`; otherwise `None` is returned. Raises
    `UnknownName` for a tool that does not exist and `SettingError` for invalid settings.
    """
    tool, label = tree.get("tool"), f"{source}: tools.{name}" if source else f"tools.{name}"
    if not isinstance(tool, str):
        raise SettingError(f"{label} needs `tool: NAME`, such as `tool: search`, or the path of a .py file")
    is_file = is_plugin_path(tool)
    if is_file and not run_files:
        return None
    module = cast(ToolModule, find_plugin("tool", PACKAGE, tool_path(tool, folder), CONTRACT))
    settings = make_settings(module.SETTINGS, {key: value for key, value in tree.items() if key != "tool"}, label)
    return Tool(name, module, settings, own=is_file)


def tool_path(name: str, folder: Path) -> str:
    """The path of a `.py` file that a protocol in `folder` names as a tool; any other name unchanged."""
    if not is_plugin_path(name) or is_function(name):
        return name
    return str(folder / Path(name).expanduser())


def _checked_call(parsed: object) -> ParsedCall | ToolFault:
    """What a user's `parse` returned; a fault if it cannot be stored as JSON."""
    if not isinstance(parsed, ParsedCall):
        return ToolFault(f"parse returned {type(parsed).__name__}, and a ParsedCall is needed")
    if parsed.arguments is None:
        return ParsedCall(problem=_one_line(parsed.problem) or "the call cannot be carried out")
    arguments = _as_json_value(parsed.arguments)
    if not isinstance(arguments, dict):
        return ToolFault("parse returned arguments that are no JSON object")
    return ParsedCall(arguments, _one_line(parsed.problem))


def _as_json_value(value: object) -> "Json | ToolFault":
    """A value as a JSON file would return it; a fault if it cannot be stored as JSON."""
    if isinstance(value, ToolFault):
        return ToolFault(_one_line(value.message))
    try:
        return parse_strict(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (InvalidJson, ValueError, TypeError, RecursionError) as error:
        return ToolFault(_one_line(f"a value that is no JSON: {error}"))


def _one_line(text: object) -> str:
    return " ".join(replace_surrogates(str(text)[:1000]).split())[:300]


ToolLike: TypeAlias = str | Path | Callable[..., object]
"""A tool by name, the path of a `.py` file, or a function."""

_ARGUMENT = re.compile(r"^( +)(\w+)(?: \([^)]*\))?:\s*(.+(?:\n\1 +.+)*)$", re.MULTILINE)
"""An argument of a Google-style docstring; its sentence continues in lines with a deeper indent."""


def tool_name(tool: ToolLike) -> str:
    """The name of a tool in settings; a function is registered under the returned name. Raises `SettingError` for a
    function without types or docstring."""
    if not callable(tool):
        return str(tool)
    try:
        description, arguments = described(tool)
        arguments.model_json_schema()
    except (NameError, PydanticUserError) as error:
        head, reason = f"{called(tool)}{inspect.signature(tool)}", str(error).partition(". ")[0]
        raise SettingError(f"the tool {head} has an argument whose name or type is not allowed: {reason}") from None

    def schema(settings: ToolSettings) -> JsonObject:
        tree = cast(JsonObject, _without_titles(cast(Json, arguments.model_json_schema())))
        return {"description": description, "parameters": tree}

    def parse(call: JsonObject, settings: ToolSettings) -> ParsedCall:
        try:
            values = arguments.model_validate(call)
        except ValidationError as error:
            return ParsedCall(problem="; ".join(sentence for _, sentence in mistakes(error, arguments, call)))
        return ParsedCall(cast(JsonObject, values.model_dump(mode="json")))

    def run(requests: Sequence[ToolRequest], settings: ToolSettings, context: ToolContext) -> list[Result]:
        return [_result(tool, arguments, request) for request in requests]

    def render(result: Result, settings: ToolSettings, context: ToolContext) -> str:
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    parts = {"SETTINGS": ToolSettings, "schema": schema, "parse": parse, "run": run, "render": render}
    return offer("tool", tool, parts)


def described(function: Callable[..., object]) -> tuple[str, type[BaseModel]]:
    """The description of a function for an agent, and a model of its arguments."""
    name, text = called(function), inspect.getdoc(unwrapped(function)) or ""
    check_plain(f"the tool {name}", function)
    description, _, listed = text.partition("\nArgs:\n")
    if not description.strip():
        raise SettingError(f"the tool {name} needs a docstring, which tells the agent what it does")
    listed = re.split(r"^\S", listed, maxsplit=1, flags=re.MULTILINE)[0]  # `Returns:` and other sections
    help_of = {key: " ".join(sentence.split()) for _, key, sentence in _ARGUMENT.findall(listed)}
    fields: dict[str, tuple[object, object]] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.annotation is inspect.Parameter.empty or parameter.kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.POSITIONAL_ONLY,
        ):
            raise SettingError(
                f"the tool {name} needs a named argument with a type, such as `{parameter.name}: str`, for "
                f"{str(parameter)!r}"
            )
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (parameter.annotation, Field(default, description=help_of.get(parameter.name)))
    make = cast("Callable[..., type[BaseModel]]", create_model)
    return " ".join(description.split()), make(name, __config__=ConfigDict(extra="forbid"), **fields)


def _result(function: Callable[..., object], arguments: type[BaseModel], request: ToolRequest) -> Result:
    """The function's return value, or a fault if it raises."""
    values = arguments.model_validate(request.arguments)
    try:
        return cast(Json, function(**{name: getattr(values, name) for name in arguments.model_fields}))
    except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
        return ToolFault(f"{type(error).__name__}: {error}")


def _without_titles(tree: Json) -> Json:
    """A JSON schema without pydantic's titles, which repeat the names."""
    if isinstance(tree, list):
        return [_without_titles(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    # A property may be called `title`; then its value is a schema, not a text.
    return {key: _without_titles(value) for key, value in tree.items() if key != "title" or not isinstance(value, str)}
