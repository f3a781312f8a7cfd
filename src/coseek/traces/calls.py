"""Logged calls: the tool calls of one chat message, and what else the message says.

Calls are those that `coseek.models.written` reads, and, where a message has none of them, those that an assistant's
text holds in a spelling that it knows (Hermes, GLM, Llama 3, Harmony).
"""

import ast
import json
import re
import warnings
from contextlib import suppress

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import parse_strict
from coseek.models import written
from coseek.models.written import CALL, ToolCallText, read_turn, split_reasoning, visible

_ANSWER = re.compile(
    r"<answer>((?:(?!<answer>).)*?)</answer>|^[ \t]*Final Answer[ \t]*:(.*)\Z", re.DOTALL | re.MULTILINE
)
"""A tag ends before the next one of its name, so that tags without an end are read in linear time."""

MOST_PYTHON = 200_000
"""Maximum number of characters that are parsed as Python."""


def python_value(text: str) -> Json:
    """The value of a literal of Python, as programs print lists and objects; `None` for any other text."""
    refusals = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
    with suppress(*refusals), warnings.catch_warnings(action="ignore"):
        return parse_strict(json.dumps(ast.literal_eval(text[:MOST_PYTHON].strip())))
    return None


def text_of(content: Json) -> str:
    """The text of a message's content: a text, a list of parts, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    parts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        kind = part.get("type") if isinstance(part, dict) else None
        parts.append(text if isinstance(text, str) else f"({kind})")
    return "\n".join(parts)


def reasoning_and_words(message: JsonObject) -> tuple[str, str]:
    """The reasoning in a message's text, and its other words without calls that are written in it."""
    text = text_of(message.get("content"))
    if message.get("role") != "assistant":
        return "", text
    if written.calls_in(message) or not (calls := _in_text(text)):
        return split_reasoning(text)[0], visible(text)
    said = read_turn(text)
    words = [str(said.get("content", "")), *(f"{CALL[0]}{call.arguments}{CALL[1]}" for call in calls if not call.name)]
    return written.reasoning_in(said), "\n".join(filter(None, words))


def answer_in(text: str) -> str:
    """The answer that a text marks last, by `<answer>` or by `Final Answer:` in a line; else the whole text."""
    marked = [*_ANSWER.finditer(text)]
    return (marked[-1][1] or marked[-1][2] or "").strip() if marked else text


def calls_in(message: JsonObject) -> list[ToolCallText]:
    """The tool calls of a message."""
    found = written.calls_in(message)
    if found or message.get("role") != "assistant":
        return found
    return [call for call in _in_text(text_of(message.get("content"))) if call.name]


def _in_text(text: str) -> list[ToolCallText]:
    """The calls in a text, where at least one can be read. One that cannot be read has no name."""
    calls = written.calls_in(read_turn(text))
    return calls if any(call.name for call in calls) else []
