"""Logged calls: the tool calls of one chat message, and what else the message says.

Calls are those that `coseek.models.written` reads, and, where a message has none of them, those that an assistant's
text holds in a spelling that it knows (Hermes, GLM, Llama 3, Harmony).
"""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from coseek.agents.grammar import Grammar
from coseek.agents.protocol import load_protocol
from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.models import written
from coseek.models.judge_text import unfenced
from coseek.models.written import CALL, ToolCallText, read_turn, split_reasoning, visible

_ANSWER = re.compile(
    r"<answer>((?:(?!<answer>).)*?)</answer>|^[ \t]*Final Answer[ \t]*:(.*)\Z", re.DOTALL | re.MULTILINE
)
"""A tag ends before the next one of its name, so that tags without an end are read in linear time."""

_FINISH = re.compile("(?:submit|give|provide|return)(?:final)?answer|final(?:answer|result)|finish|submit", re.I)
_FINAL = ("final_answer", "answer", "result", "response", "output", "text")
"""Arguments that hold the answer of a call that ends a run, the first that is there; else its only argument."""
MOST_PYTHON = 200_000
"""Maximum number of characters that are parsed as Python."""


def python_value(text: str) -> Json:
    """The value of a literal of Python, as programs print lists and objects; `None` for any other text."""
    refusals = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
    with suppress(*refusals), warnings.catch_warnings(action="ignore"):
        return parse_strict(json.dumps(ast.literal_eval(text[:MOST_PYTHON].strip())))
    return None


def parsed(value: Json) -> Json:
    """The list or object in a text that is JSON or a literal of Python, as programs print them; else the value."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    with suppress(InvalidJson):
        return parse_strict(value)
    literal = python_value(value)
    return value if literal is None else literal


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
    r"""The answer that a text marks last by `<answer>`, `Final Answer:` in a line or `\boxed{…}`, or that it names in
    JSON; else the whole text."""
    if marked := [*_ANSWER.finditer(text)]:
        return (marked[-1][1] or marked[-1][2] or "").strip()
    if isinstance(row := parsed(unfenced(text)), dict) and isinstance(said := row.get("answer"), str | int | float):
        return text_of(said)
    spans = _boxed().parse(text) if "\\boxed{" in text else []
    return next((span.text for span in reversed(spans) if span.tag == "answer"), text)


@cache
def _boxed() -> Grammar:
    r"""The grammar of a protocol whose answer is in `\boxed{…}`."""
    return load_protocol("search-o1").grammar


def is_finish(name: str) -> bool:
    """Whether a tool or an action of this name ends a run with its argument as the answer."""
    return _FINISH.fullmatch(re.sub(r"[\s_-]", "", name)) is not None


def finished_in(calls: Sequence[ToolCallText]) -> str:
    """The answer in the only call of a turn, where this ends the run; else ""."""
    if len(calls) != 1 or calls[0].is_malformed or not is_finish(calls[0].name):
        return ""
    given = calls[0].arguments
    if isinstance(given, dict):
        alone = next(iter(given.values())) if len(given) == 1 else None
        given = next((given[name] for name in _FINAL if name in given), alone)
    return text_of(given).strip()


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
