"""Written calls: reads a whole turn as an assistant's message: its reasoning, its words and its tool calls, in order.

The spelling follows from the text: `<tool_call>` with JSON (Hermes, Qwen) or with a name and `<arg_key>` (GLM), JSON
alone or after `<|python_tag|>` (Llama 3), or Harmony's channels (gpt-oss). A call inside reasoning is no call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, fault_in, parse_lenient, parse_lenient_values
from coseek.models.written import CHANNEL_END, ToolCallText, calls_in, split_reasoning

CALL = ("<tool_call>", "</tool_call>")
RESPONSE = ("<tool_response>", "</tool_response>")
"""Marks of a result in our own spelling, for models without a template for it."""
MOST_CALLS = 32
"""Calls in one turn; a model that goes round in circles writes thousands."""
_PYTHON_TAG = "<|python_tag|>"
_HEAD = re.compile(r"<\|channel\|>([^<]*+(?:<\|constrain\|>[^<]*+)?)<\|message\|>")
_RECIPIENT = re.compile(r"\bto=([\w.:-]{1,128})")
_PAIR = re.compile(
    r"<arg_key>((?:(?!<arg_key>).)*?)</arg_key>\s*+<arg_value>((?:(?!<arg_value>).)*?)</arg_value>", re.DOTALL
)
"""A tag ends before the next one of its name, so that tags without an end are read in linear time."""
_NAME = re.compile(r"[\w.:-]{1,128}")


def read_turn(text: str, opened: str = "", tools: Sequence[JsonObject] = ()) -> JsonObject:
    """The assistant's message in a turn: `content`, `reasoning_content` and `tool_calls`, those that are there.

    `opened` is the mark of reasoning that the prompt ends with. `tools` are the schemas that the model was given: they
    tell which JSON alone is a call, and the types of GLM's arguments. A call that cannot be read has no name, and its
    text as arguments.
    """
    if _HEAD.search(text):
        return _harmony(text)
    reasoning, words = split_reasoning(opened + text)
    content, calls = _marked(words, tools) if CALL[0] in words else _bare(words, tools)
    return message_of(content, reasoning, calls)


def message_of(content: str, reasoning: str, calls: Sequence[ToolCallText]) -> JsonObject:
    """An assistant's message with the parts that are not empty. Of more than `MOST_CALLS` calls the first are kept, and
    a last one that cannot be carried out stands for the others."""
    if len(calls) > MOST_CALLS:
        calls = [*calls[:MOST_CALLS], unread(f"more than {MOST_CALLS} calls in one turn")]
    message: JsonObject = {"content": content.strip()} if content.strip() else {}
    if reasoning.strip():
        message["reasoning_content"] = reasoning.strip()
    if calls:
        message["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return message


def parameters_of(tools: Sequence[JsonObject]) -> dict[str, Mapping[str, Json]]:
    """The properties of each tool's parameters, by the tool's name."""
    found: dict[str, Mapping[str, Json]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            found[name] = properties if isinstance(properties, dict) else {}
    return found


def _harmony(text: str) -> JsonObject:
    """Channels: a message with a recipient is a call, the last `final` one the content, all others reasoning."""
    reasoning: list[str] = []
    calls: list[ToolCallText] = []
    content, before = "", 0
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        body, between = text[head.end() : end], text[before : head.start()]
        if closed := CHANNEL_END.search(body):
            body = body[: closed.start()]
        before = head.end() + len(body)
        if recipient := _RECIPIENT.search(head[1]) or _RECIPIENT.search(between):
            calls += _read_call({"name": recipient[1], "arguments": body}) or [unread(body)]
        elif head[1].split()[:1] == ["final"]:
            content = body
        else:
            reasoning.append(body.strip())
    return message_of(content, "\n".join(filter(None, reasoning)), calls)


def _marked(words: str, tools: Sequence[JsonObject]) -> tuple[str, list[ToolCallText]]:
    """The words outside `<tool_call>`, and the calls. The last one may lack its end, where that ended the turn."""
    content, *pieces = words.split(CALL[0], MOST_CALLS + 1)
    calls: list[ToolCallText] = []
    for place, piece in enumerate(pieces, start=1):
        inside, closed, rest = piece.partition(CALL[1])
        whole = closed or place == len(pieces)
        calls += (whole and (_in_json(inside) or _in_tags(inside, tools))) or [unread(inside)]
        content += rest if rest.strip() else ""
    return content, calls


def _in_json(text: str) -> list[ToolCallText]:
    with suppress(InvalidJson):
        value = parse_lenient(text)
        rows = value if isinstance(value, list) else [value]
        return [call for row in rows for call in (_read_call(row) or [unread(json.dumps(row, ensure_ascii=False))])]
    return []


def _in_tags(text: str, tools: Sequence[JsonObject]) -> list[ToolCallText]:
    name = text.partition("<arg_key>")[0].strip()
    if not _NAME.fullmatch(name):
        return []
    types = parameters_of(tools).get(name, {})
    pairs = ((key.strip(), value) for key, value in _PAIR.findall(text))
    return _read_call({"name": name, "arguments": {key: _typed(value, types.get(key)) for key, value in pairs}})


def _typed(text: str, schema: Json) -> Json:
    """An argument that was written as plain text: JSON, unless it may be a text."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return text.strip()
    with suppress(InvalidJson):
        return parse_lenient(text)
    return text.strip()


def _bare(words: str, tools: Sequence[JsonObject]) -> tuple[str, list[ToolCallText]]:
    """Llama 3: JSON objects after the tag, or as the whole text where each calls one of the tools."""
    content, tag, text = words.rpartition(_PYTHON_TAG)
    if not tag and words.lstrip()[:1] not in ("{", "["):
        return words, []
    rows = _values(text)
    calls = [call for row in rows for call in _read_call(row)]
    if tag:
        return content, calls or [unread(text)]
    known = [*parameters_of(tools)]
    whole = len(calls) == len(rows) and all(_is_call(row, known) for row in rows)
    return ("", calls) if calls and whole else (words, [])


def _is_call(row: Json, known: Sequence[str]) -> bool:
    """Whether JSON without any mark calls one of the tools, or holds a name and arguments and nothing else."""
    if not isinstance(row, dict):
        return False
    return row.get("name") in known or any({"name", given} == row.keys() for given in ("parameters", "arguments"))


def _values(text: str) -> list[Json]:
    """The JSON values of a text that holds nothing else, those of lists too; empty for any other text."""
    rows: list[Json] = []
    with suppress(InvalidJson):
        for value in parse_lenient_values(text):
            rows += value if isinstance(value, list) else [value]
        return rows
    return []


def _read_call(row: Json) -> list[ToolCallText]:
    """A call in an object with a name and arguments; none for anything that no file can hold."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return []
    calls = calls_in({"tool_calls": [{"function": row}]})
    return [call for call in calls if call.name and not fault_in({"": call.arguments, "name": call.name})]


def unread(text: str) -> ToolCallText:
    return ToolCallText(None, "", text.strip())
