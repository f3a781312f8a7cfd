"""Function tool: a typed function with a docstring as a tool. Its name, arguments and description are the function's.

def multiply(a: float, b: float) -> float:
    \"\"\"Multiply two numbers.

    Args:
        a: the first number
        b: the second one
    \"\"\"
    return a * b
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from coseek.agents.tool import ParsedCall, Result, ToolContext, ToolFault, ToolRequest, ToolSettings
from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.own_functions import called, offer
from coseek.core.settings import mistakes

ToolLike: TypeAlias = str | Path | Callable[..., object]
"""A tool by name, the path of a `.py` file, or a function."""

_ARGUMENT = re.compile(r"^\s+(\w+)(?: \([^)]*\))?:\s*(.+)$", re.MULTILINE)


def tool_name(given: ToolLike) -> str:
    """A tool as settings name it; a function becomes a part. Raises `SettingError` for a function without types or
    docstring."""
    if not callable(given):
        return str(given)
    about, arguments = described(given)

    def schema(settings: ToolSettings) -> JsonObject:
        tree = cast(JsonObject, _without_titles(cast(Json, arguments.model_json_schema())))
        return {"description": about, "parameters": tree}

    def parse(call: JsonObject, settings: ToolSettings) -> ParsedCall:
        try:
            made = arguments.model_validate(call)
        except ValidationError as error:
            return ParsedCall(problem="; ".join(sentence for _, sentence in mistakes(error, arguments, call)))
        return ParsedCall(cast(JsonObject, made.model_dump(mode="json")))

    def run(requests: Sequence[ToolRequest], settings: ToolSettings, context: ToolContext) -> list[Result]:
        return [_result(given, arguments, request) for request in requests]

    def render(result: Result, settings: ToolSettings, context: ToolContext) -> str:
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    parts = {"SETTINGS": ToolSettings, "schema": schema, "parse": parse, "run": run, "render": render}
    return offer("tool", given, parts)


def described(function: Callable[..., object]) -> tuple[str, type[BaseModel]]:
    """The description of a function for an agent, and a model of its arguments."""
    name, text = called(function), inspect.getdoc(function) or ""
    about, _, listed = text.partition("\nArgs:\n")
    if not about.strip():
        raise SettingError(f"the tool {name} needs a docstring, which tells the agent what it does")
    help_of = {key: what.strip() for key, what in _ARGUMENT.findall(listed.partition("\nReturns:")[0])}
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
    return " ".join(about.split()), make(name, __config__=ConfigDict(extra="forbid"), **fields)


def _result(function: Callable[..., object], arguments: type[BaseModel], request: ToolRequest) -> Result:
    """What the function returns; an exception is a fault of this call alone."""
    made = arguments.model_validate(request.arguments)
    try:
        return cast(Json, function(**{name: getattr(made, name) for name in arguments.model_fields}))
    except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
        return ToolFault(f"{type(error).__name__}: {error}")


def _without_titles(tree: Json) -> Json:
    """A JSON schema without pydantic's titles, which repeat the names."""
    if isinstance(tree, list):
        return [_without_titles(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    # A property may be called `title`; then its value is a schema and no text.
    return {key: _without_titles(value) for key, value in tree.items() if key != "title" or not isinstance(value, str)}
