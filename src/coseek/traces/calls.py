"""Logged calls: the tool calls of one chat message, and what else the message says.

Calls are those that `coseek.models.written` reads, and, where a message has none of them, those that an assistant's
text holds as `<tool_call>{"name", "arguments"}</tool_call>` (Hermes, Qwen).
"""

import json
import re

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.models import written
from coseek.models.written import ToolCallText, split_reasoning, visible

_WRITTEN = re.compile(r"<tool_call>\s*(\{(?:(?!<tool_call>).)*?\})\s*</tool_call>", re.DOTALL)
_ANSWER = re.compile(
    r"<answer>((?:(?!<answer>).)*?)</answer>|^[ \t]*Final Answer[ \t]*:(.*)\Z", re.DOTALL | re.MULTILINE
)
"""A tag ends before the next one of its name, so that tags without an end are read in linear time."""


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
    if not written.calls_in(message):
        text = _WRITTEN.sub(lambda found: "" if _written(found[1]) else found[0], text)
    return split_reasoning(text)[0], visible(text)


def answer_in(text: str) -> str:
    """The answer that a text marks last, by `<answer>` or by `Final Answer:` in a line; else the whole text."""
    marked = [*_ANSWER.finditer(text)]
    return (marked[-1][1] or marked[-1][2] or "").strip() if marked else text


def calls_in(message: JsonObject) -> list[ToolCallText]:
    """The tool calls of a message."""
    found = written.calls_in(message)
    if found or message.get("role") != "assistant":
        return found
    texts = (_written(one[1]) for one in _WRITTEN.finditer(text_of(message.get("content"))))
    return [call for call in texts if call is not None]


def _written(text: str) -> ToolCallText | None:
    """A call in a text; `None` for anything else."""
    try:
        row = parse_strict(text)
    except InvalidJson:
        return None
    return next(iter(written.calls_in({"tool_calls": [{"function": row}]})), None)
