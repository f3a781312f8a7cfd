"""A typed function with a docstring is a tool: its schema, its calls, and what is wrong with one that is none."""

from typing import Literal, cast

import pytest

from coseek.agents.protocol import load_protocol
from coseek.agents.tool import Tool, ToolContext, ToolFault, ToolRequest, open_tool, tool_name
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.retrieval.query import Query


def convert(amount: float, unit: Literal["km", "mi"] = "km") -> dict[str, float]:
    """Convert a distance
    to metres.

    Args:
        amount: how far
        unit (str): of the distance
    """
    if amount < 0:
        raise ValueError("a distance is not negative")
    return {"metres": amount * (1000 if unit == "km" else 1609)}


def opened() -> Tool:
    tool = open_tool("mine", {"tool": tool_name(convert)}, run_files=True)
    assert tool is not None
    return tool


def test_name_arguments_and_description_are_the_functions() -> None:
    assert tool_name(convert) == "python:convert"
    assert opened().schema == {
        "type": "function",
        "function": {
            "name": "mine",
            "description": "Convert a distance to metres.",
            "parameters": {
                "type": "object",
                "properties": {
                    "amount": {"type": "number", "description": "how far"},
                    "unit": {
                        "type": "string",
                        "enum": ["km", "mi"],
                        "default": "km",
                        "description": "of the distance",
                    },
                },
                "required": ["amount"],
                "additionalProperties": False,
            },
        },
    }


def test_a_call_is_checked_and_run() -> None:
    tool = opened()
    parsed = tool.parse({"amount": 2})
    assert parsed.call is not None and parsed.call.arguments == {"amount": 2.0, "unit": "km"} and not parsed.problem
    asked: list[JsonObject] = [parsed.call.arguments, {"amount": -1.0, "unit": "km"}, {"amount": 1.0, "unit": "mi"}]
    requests = [ToolRequest(arguments, 1, Query("", "q")) for arguments in asked]
    found = tool.run(requests, cast(ToolContext, None))  # it reads no context
    assert found[0] == {"metres": 2000.0} and found[2] == {"metres": 1609.0}
    assert found[1] == ToolFault("ValueError: a distance is not negative")
    wrong: list[tuple[JsonObject, str]] = [({"amount": "far"}, "'amount' needs a number")]
    wrong += [({"amont": 1}, "did you mean 'amount'")]
    for arguments, problem in wrong:
        parsed = tool.parse(arguments)
        assert parsed.call is None and problem in parsed.problem


def test_a_protocol_takes_further_tools() -> None:
    plain, more = load_protocol("tools"), load_protocol("tools", tools=[tool_name(convert)], run_files=True)
    assert set(more.grammar.tools) - set(plain.grammar.tools) == {"convert"} and more.identity != plain.identity
    with pytest.raises(SettingError, match="shows the agent no further tools; take the protocol tools"):
        load_protocol("search-r1", tools=["visit"])
    with pytest.raises(SettingError, match="has a tool 'search' already"):
        load_protocol("tools", tools=["search"])


def untyped(x):  # type: ignore[no-untyped-def]
    """Say it."""
    return x


def silent(x: str) -> str:
    return x


def many(*x: str) -> str:
    """Say them."""
    return ""


@pytest.mark.parametrize(
    ("function", "says"),
    [(untyped, "with a type, such as `x: str`"), (silent, "needs a docstring"), (many, "needs a named argument")],
)
def test_what_a_function_lacks_is_said(function: object, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        tool_name(function)  # type: ignore[arg-type]
