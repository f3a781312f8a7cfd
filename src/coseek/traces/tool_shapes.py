"""Tool shapes: tool calls and results in objects of other programs, whatever the names of their fields.

An object is recognised by its type or the key around it (`tool_use`, `functionCall`, `web_search_tool_result`), else by
its fields. Names are compared by their letters alone, so that `toolCallId` equals `tool_call_id`. Calls and results are
converted to calls and messages of OpenAI's chat completions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coseek.core.files import Json, JsonObject
from coseek.traces.calls import as_json, text_of

_TOOL = r"\w*(?:tool|function|mcp|websearch|filesearch|codeexecution)"
_CALL = re.compile(rf"{_TOOL}\w*?(?:call|use|invocation|request|requestevent|selection)s?|dynamictool|function")
_RESULT = re.compile(rf"{_TOOL}\w*?(?:result|response|return|output|executionevent|resultmessage)s?|retryprompt")
_SPEAKS_OF_TOOL = re.compile("tool|function_?call|intermediate_steps|action_input|observations", re.I)
_BESIDE = ("tools", "functions", "tool_choice", "tool_config", "usage", "usage_metadata")
"""Fields outside a conversation that mention tools but hold no call."""
_KINDS = ("type", "block_type", "part_kind", "kind")
_IDS = ("callid", "toolcallid", "tooluseid", "toolid")
_NAMES = ("name", "toolname", "functionname", "function", "tool", "action")
_ARGUMENTS = (
    "arguments",
    "args",
    "input",
    "parameters",
    "toolkwargs",
    "toolargs",
    "toolinput",
    "kwargs",
    "actioninput",
)
_CALLS = ("origin", "call")
"""Fields of a result with its call."""
_OUTPUTS = ("result", "results", "output", "outputs", "tooloutput")
_CONTENTS = (*_OUTPUTS, "content", "response", "observation", "value", "blocks")
_AI_SDK = ("text", "json", "content", "error-text", "error-json")
"""Types of the AI SDK's envelope of an output."""
_FOUND = ("search_result", "web_search_result")
"""Types of blocks in a result that are passages."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call in the form of chat completions, its result as a message of the role `tool`, or both."""

    call: JsonObject | None = None
    result: JsonObject | None = None


def letters(name: str) -> str:
    """The letters of a name in lower case."""
    return "".join(filter(str.isalpha, name)).lower()


def kind_of(block: JsonObject) -> str:
    """The type of an object; "" without one."""
    return next((kind for name in _KINDS if isinstance(kind := block.get(name), str)), "")


def holds_calls(name: str) -> bool:
    """Whether a field of this name holds tool calls."""
    name_letters = letters(name)
    return name_letters != "function" and "invalid" not in name_letters and _CALL.fullmatch(name_letters) is not None


def holds_results(name: str) -> bool:
    """Whether a field of this name holds tool results."""
    return _RESULT.fullmatch(letters(name)) is not None


def tool_use_in(block: JsonObject) -> ToolUse | None:
    """The call in an object, its result, or both; `None` without any."""
    kind = kind_of(block)
    objects = (name for name, value in block.items() if value and isinstance(value, dict))
    outer_name = next((name for name in objects if holds_calls(name) or holds_results(name)), None)
    if outer_name is not None and not _calls(_fields(block)):
        kind, block = outer_name, {"toolCallId": block.get("id"), **object_of(block[outer_name])}
    fields = _fields({**block, **object_of(block.get("function")), **object_of(block.get("custom"))})
    refers = _has_reference(fields) or any(isinstance(fields.get(name), dict) for name in _CALLS)
    if holds_results(kind) or (not kind and not _calls(fields) and refers and _first(fields, _CONTENTS) is not None):
        return ToolUse(_call_beside(fields), _result_of(fields))
    is_part = kind.startswith("tool-") and _has_reference(fields)  # `tool-NAME` of the AI SDK
    if not (is_part or _CALL.fullmatch(letters(kind)) or (not kind and _calls(fields))):
        return None
    name = _name_in(fields) or kind.removeprefix("tool-" if is_part else "").removesuffix("_call")
    arguments = _first(fields, _ARGUMENTS)
    if kind.endswith("_search_call"):
        name, arguments = _own_search(name, fields)
    elif not is_part and not _name_in(fields):
        return None
    is_done = any(fields.get(output) not in (None, "") for output in (*_OUTPUTS, "errortext"))
    return ToolUse(_call(fields, name, arguments), _result_of(fields) if is_done else None)


def tool_name_in(value: Json) -> str:
    """The first field or type in a value that mentions the use of a tool; "" without one. Tool schemas do not count."""
    if isinstance(value, list):
        return next((name for item in value if (name := tool_name_in(item))), "")
    if not isinstance(value, dict):
        return ""
    if _SPEAKS_OF_TOOL.search(kind := kind_of(value)) and kind != "function":
        return kind
    for name, child in value.items():
        if name in _BESIDE or not child or child is True:
            continue
        if tool := name if _SPEAKS_OF_TOOL.search(name) else tool_name_in(child):
            return tool
    return ""


def object_of(value: Json) -> JsonObject:
    """The value, if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _fields(block: JsonObject) -> JsonObject:
    """The values of an object that are not null, by the letters of their names."""
    return {letters(name): value for name, value in block.items() if value is not None}


def _first(fields: Mapping[str, Json], names: Sequence[str]) -> Json:
    return next((fields[name] for name in names if name in fields), None)


def _calls(fields: Mapping[str, Json]) -> bool:
    return bool(_name_in(fields)) and any(name in fields for name in _ARGUMENTS)


def _has_reference(fields: Mapping[str, Json]) -> bool:
    return any(name in fields for name in _IDS)


def _name_in(fields: Mapping[str, Json]) -> str:
    return next((name for field in _NAMES if isinstance(name := fields.get(field), str)), "")


def _own_search(name: str, fields: Mapping[str, Json]) -> tuple[str, Json]:
    """Name and arguments of a search by OpenAI's server. Its action may also open a page."""
    action = object_of(fields.get("action"))
    kind = action.get("type", "search")
    if kind != "search":
        return str(kind), {field: value for field, value in action.items() if field != "type"}
    return name, {"query": action.get("query") or action.get("queries") or fields.get("queries")}


def _call(fields: Mapping[str, Json], name: str, arguments: Json) -> JsonObject:
    ident = next((ident for field in (*_IDS, "id") if isinstance(ident := fields.get(field), str) and ident), None)
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_beside(fields: Mapping[str, Json]) -> JsonObject | None:
    """The call that a result repeats, in its own fields or in an object."""
    if _calls(fields):
        return _call(fields, _name_in(fields), _first(fields, _ARGUMENTS))
    uses = (tool_use_in(object_of(fields.get(name))) for name in _CALLS)
    return next((use.call for use in uses if use is not None), None)


def _result_of(fields: Mapping[str, Json]) -> JsonObject:
    content = _first(fields, _CONTENTS)
    fault = _fault_in(fields)
    if isinstance(content, dict) and (content.get("type") in _AI_SDK or {"is_error", "isError"} & content.keys()):
        fault = fault or _fault_in(_fields(content))
        content = next((content[name] for name in ("value", "content", "blocks") if name in content), None)
    text, call = result_text(content), _call_beside(fields)
    ident = _first(fields, (*_IDS, "id")) or (call and call["id"])
    answer: JsonObject = {"role": "tool", "tool_call_id": ident, "content": text}
    return {**answer, "fault": text or fault} if fault else answer


def _fault_in(fields: Mapping[str, Json]) -> str:
    error = fields.get("errortext") or fields.get("error")
    if isinstance(error, str | dict) and error:
        return text_of(error)
    failed = True in (error, fields.get("iserror"), fields.get("toolcallerror"))
    failed = failed or any(fields.get(name) in ("error", "failed") for name in ("status", "outcome"))
    return "the tool failed" if failed or str(fields.get("type")).startswith("error-") else ""


def result_text(content: Json) -> str:
    """The text of a result. Blocks of pages or documents become a list of passages; JSON stays JSON."""
    if not isinstance(content, list):
        return text_of(content)
    blocks = [block for block in content if isinstance(block, dict)]
    if any(block.get("type") in _FOUND for block in blocks):
        pages: list[Json] = [
            {
                "url": page.get("source", page.get("url")),
                "title": page.get("title"),
                "text": text_of(page.get("content")),
            }
            for page in blocks
        ]
        return as_json(pages)
    inner = [block.get("json", object_of(block.get("document")).get("data")) for block in blocks]  # Bedrock, Cohere
    if blocks and all(value is not None for value in inner):
        value = inner[0] if len(inner) == 1 else inner
        return as_json(value) if isinstance(value, list) else text_of(value)
    is_text = any(block.keys() == {"text"} or re.search("text|image", kind_of(block)) for block in blocks)
    return text_of(content) if is_text else as_json(content)
