"""Logged calls: the tool calls of one chat message, its reasoning, words and answer.

Calls are those that `coseek.models.written` parses from a message, else from an assistant's text (Hermes, GLM, Llama 3,
Harmony).
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
from coseek.models.written import CALL, ToolCallText, read_turn, split_reasoning, without_reasoning

_ANSWER = re.compile(
    r"<answer>((?:(?!<answer>).)*?)</answer>|^[ \t]*(?:Final Answer[ \t]*:"
    r"|[#*]{1,6}[ \t]*Final Answer[ \t]*\*{0,2}[ \t]*[:\n][ \t]*(?:\*\*)?)(.*)\Z",
    re.DOTALL | re.MULTILINE,
)
"""A tag ends before the next tag of its name, so that unclosed tags take linear time."""

_FINISH = re.compile("(?:submit|give|provide|return)(?:final)?answer|final(?:answer|result)|finish|submit", re.I)
_FINAL = ("final_answer", "answer", "result", "response", "output", "text")
"""Arguments with the answer of a call that ends a run, in order of preference; else its only argument."""
MOST_PYTHON = 200_000
"""Maximum number of characters to parse as Python."""


def as_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def tool_call(ident: str | None, name: str, arguments: Json) -> JsonObject:
    """A call in the form of chat completions. `arguments` is JSON in a text, or in other programs' calls an object."""
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def python_value(text: str) -> Json:
    """The value of a Python literal, as programs print lists and objects; `None` for other texts."""
    refusals = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
    with suppress(*refusals), warnings.catch_warnings(action="ignore"):
        return parse_strict(json.dumps(ast.literal_eval(text[:MOST_PYTHON].strip())))
    return None


def parsed(value: Json) -> Json:
    """Parse a text that is a list or an object, as JSON or as a Python literal. Other values are returned unchanged."""
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
        return as_json(content)
    texts: list[str] = []
    for part in content:
        row = part if isinstance(part, dict) else {"text": part}
        texts.append(text if isinstance(text := row.get("text"), str) else f"({row.get('type')})")
    return "\n".join(texts)


def reasoning_and_words(message: JsonObject) -> tuple[str, str]:
    """The reasoning in a message's text, and its other words without the calls in it."""
    text = text_of(message.get("content"))
    if message.get("role") != "assistant":
        return "", text
    if written.calls_in(message) or not (calls := _calls_in_text(text)):
        return split_reasoning(text)[0], without_reasoning(text)
    turn = read_turn(text)
    words = [str(turn.get("content", "")), *(f"{CALL[0]}{call.arguments}{CALL[1]}" for call in calls if not call.name)]
    return written.reasoning_in(turn), "\n".join(filter(None, words))


def answer_in(text: str) -> str:
    r"""The last answer in a text that is marked by `<answer>`, a line `Final Answer:` or `\boxed{…}`, or the `answer`
    of a JSON object; else the whole text."""
    if marked := [*_ANSWER.finditer(text)]:
        return (marked[-1][1] or marked[-1][2] or "").strip().removesuffix("**")
    if isinstance(row := parsed(unfenced(text)), dict) and isinstance(answer := row.get("answer"), str | int | float):
        return text_of(answer)
    spans = _boxed_grammar().parse(text) if "\\boxed{" in text else []
    return next((span.text for span in reversed(spans) if span.tag == "answer"), text)


@cache
def _boxed_grammar() -> Grammar:
    r"""The grammar of a protocol that marks answers by `\boxed{…}`."""
    return load_protocol("search-o1").grammar


def is_finish(name: str) -> bool:
    """Whether a tool or action of this name ends a run, with its argument as the answer."""
    return _FINISH.fullmatch(re.sub(r"[\s_-]", "", name)) is not None


def finished_in(calls: Sequence[ToolCallText]) -> str:
    """The answer in a turn's only call, if the call ends the run; else ""."""
    if len(calls) != 1 or calls[0].is_malformed or not is_finish(calls[0].name):
        return ""
    answer = calls[0].arguments
    if isinstance(answer, dict):
        only_value = next(iter(answer.values())) if len(answer) == 1 else None
        answer = next((answer[name] for name in _FINAL if name in answer), only_value)
    return text_of(answer).strip()


def calls_in(message: JsonObject) -> list[ToolCallText]:
    """The tool calls of a message, or else those in the text of an assistant's message."""
    calls = written.calls_in(message)
    if calls or message.get("role") != "assistant":
        return calls
    return [call for call in _calls_in_text(text_of(message.get("content"))) if call.name]


def _calls_in_text(text: str) -> list[ToolCallText]:
    """The calls in a text, if at least one can be parsed. Unparsable calls have no name."""
    calls = written.calls_in(read_turn(text))
    return calls if any(call.name for call in calls) else []
