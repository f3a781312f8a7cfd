"""My part: a tool that counts the words of a text."""

from collections.abc import Sequence

from coseek.agents.tool import ParsedCall, ToolContext, ToolRequest, ToolSettings
from coseek.core.files import JsonObject

EXAMPLE: JsonObject = {"text": "three small words"}
"""Arguments with which `coseek check` calls the tool."""

SETTINGS = ToolSettings


def parse(arguments: JsonObject, settings: ToolSettings) -> ParsedCall:
    """Read the agent's arguments, or say what is wrong with them."""
    text = arguments.get("text")
    return ParsedCall({"text": text}) if isinstance(text, str) else ParsedCall(problem="'text' must be a text")


def run(requests: Sequence[ToolRequest], settings: ToolSettings, context: ToolContext) -> list[int]:
    """Return one JSON value per request, in order."""
    return [len(str(request.arguments["text"]).split()) for request in requests]


def render(result: int, settings: ToolSettings, context: ToolContext) -> str:
    """Return what the agent reads."""
    return f"{result} words"
