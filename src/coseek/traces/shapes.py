"""Shapes: messages, tool calls and results in objects of other programs, whatever the names of their fields.

An object is recognised by its type or the key around it (`tool_use`, `functionCall`, `web_search_tool_result`), else by
its fields. Names are compared by their letters alone, so that `toolCallId` equals `tool_call_id`. Calls and results are
converted to calls and messages of OpenAI's chat completions.

Messages are those of LangChain in any dump, LlamaIndex, Haystack, AutoGen, Gemini, the AI SDK and ChatGPT, steps of
smolagents, and messages inside events of LangGraph and LlamaIndex.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coseek.core.files import Json, JsonObject
from coseek.traces.calls import as_json, parsed, text_of, tool_call

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
    return tool_call(ident, name, arguments)


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


# Messages: their roles and contents, and where they are in a record.

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Roles of chat completions."""
THOUGHTS = ("thinking", "reasoning")
"""Types of items and parts with reasoning."""
_ROLES = {
    **dict.fromkeys(("system", "systemmessage", "systemprompt"), "system"),
    **dict.fromkeys(("user", "human", "customer", "usermessage", "humanmessage"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "bot", "gpt", "chatbot", "agent"), "assistant"),
    **dict.fromkeys(("aimessage", "aimessagechunk", "assistantmessage"), "assistant"),
    **dict.fromkeys(("toolcallrequestevent", "thoughtevent"), "assistant"),
    **dict.fromkeys(("tool", "toolmessage", "ipython", "observation"), "tool"),
    **dict.fromkeys(("toolcallexecutionevent", "functionexecutionresultmessage"), "tool"),
    **dict.fromkeys(("function", "functionmessage"), "function"),
}
"""Role or type of a message, by its letters → role of chat completions."""
_ONLY_ROLES = {
    **dict.fromkeys(("toolcall", "functioncall"), "assistant"),
    **dict.fromkeys(("toolresponse", "toolresult", "functionresponse"), "tool"),
}
"""Roles that as types would mean calls and results, not messages."""
_REQUESTS = {"request": "user", "response": "assistant"}
"""Kinds of Pydantic AI's messages."""
_ENVELOPES = ("data", "kwargs", "value", "message", "content", "response")
_MESSAGE_CONTENTS = ("parts", "blocks", "content", "message", "value", "text")
"""Fields with the content of a message; the first that is not empty counts."""
_OF_SMOLAGENTS = {"task": "user", "task_images": "", "system_prompt": "system", "output": "assistant"}
_INPUTS = ("AgentInput", "AgentSetup")
"""Events of LlamaIndex with the messages that the agent reads."""
_CHOICES = ("choices", "candidates")
ANSWERS = ("response", "output", "outputs", "completion", *_CHOICES)
"""Fields of a record with the model's output, which are read after its input."""
_TEXTS = (*ANSWERS, "final_answer", "answer")
"""Fields of a record that may hold the answer, outside the messages."""


def unpacked(item: JsonObject) -> JsonObject:
    """The message in an envelope, or a step as a message. Other items are returned unchanged."""
    if any(name in item for name in ("role", "from", "author")):
        return item
    if "_role" in item:  # Haystack
        return {name.removeprefix("_"): value for name, value in item.items()}
    path, name = item.get("id"), item.get("qualified_name")
    kind = path[-1] if isinstance(path, list) and path and item.get("type") == "constructor" else item.get("type")
    inner = next((value for field in _ENVELOPES if isinstance(value := item.get(field), dict)), None)
    if inner is not None and isinstance(name, str):  # LlamaIndex
        return unpacked({"type": name.rpartition(".")[2], **inner})
    if inner is not None and ("parts" in inner or role_of(inner)):
        return unpacked(inner)
    if inner is not None and role_of({**inner, "type": kind}):  # LangChain
        return {**inner, "type": kind}
    if "step_number" in item:
        return {**item, "role": "assistant", "content": item.get("model_output")}
    if item.keys() <= _OF_SMOLAGENTS.keys() and isinstance(content := next(iter(item.values()), None), str):
        return {"role": _OF_SMOLAGENTS[next(iter(item))], "content": content}
    return item


def role_of(item: JsonObject) -> str:
    """The role of a message in chat completions, else its own role; "" for an item without a role."""
    author = item.get("author")
    role = item.get("role", author.get("role") if isinstance(author, dict) else None)
    if isinstance(role, str):
        return role if role in ROLES else {**_ROLES, **_ONLY_ROLES}.get(letters(role), role.lower())
    if isinstance(speaker := item.get("from"), str):  # ShareGPT; a mail is no message
        return {**_ROLES, **_ONLY_ROLES}.get(letters(speaker), "")
    kind = letters(kind_of(item))
    if isinstance(source := item.get("source"), str) and kind.endswith("message") and kind not in _ROLES:  # AutoGen
        return "user" if source == "user" else "assistant"
    kinds = {**_ROLES, **_REQUESTS} if "parts" in item else _ROLES
    return kinds.get(kind, "") if any(name in item for name in _MESSAGE_CONTENTS) else ""


def with_content(item: JsonObject) -> JsonObject:
    """The message with its content in the field `content`: a text, blocks, or nothing."""
    name = next((name for name in _MESSAGE_CONTENTS if item.get(name)), "content")
    content = item.get(name)
    if isinstance(content, dict) and isinstance(content.get("parts"), list):  # ChatGPT
        content = content["parts"]
    if isinstance(content, dict) and (tool_use_in(content) or "text" in content):
        content = [content]
    if name == "content" and content is item.get("content"):
        return item
    repeated = ("toolinvocations",) if name == "parts" else ()  # of the AI SDK, which also has them in its parts
    other_fields = {field: value for field, value in item.items() if field != name and letters(field) not in repeated}
    return {**other_fields, "content": content}


def is_message(value: Json) -> bool:
    """Whether a value is an item of a conversation rather than a separate record."""
    return _is_single(value) or (isinstance(value, dict) and bool(messages_inside(unpacked(value))))


def message_lists(
    value: Json, is_item: Callable[[Json], bool] = is_message, depth: int = 4, at: str = ""
) -> Iterator[tuple[str, list[Json]]]:
    """The lists of messages in a value with their paths, those of answers last. Only the first of several choices is
    read; lists inside messages and tool schemas are skipped."""
    if isinstance(value, list) and value and all(map(is_item, value)):
        yield at, value
    elif isinstance(value, dict) and depth:
        for name in sorted(value, key=lambda name: name in ANSWERS):
            if name not in ("tools", "functions") or isinstance(value[name], dict):
                first = inner[:1] if isinstance(inner := value[name], list) and name in _CHOICES else inner
                yield from message_lists(first, is_item, depth - 1, f"{at}.{name}".lstrip("."))
    elif depth and (inner_value := parsed(value)) is not value:
        yield from message_lists(inner_value, is_item, depth - 1, at)


def said_in(value: Json, gold: str = "", at: str = "") -> tuple[str, list[Json]]:
    """The path of a model's output in a record or response, and its messages: a message, the first of several choices,
    or a text. The path `gold` is skipped."""
    if isinstance(value, str):
        inner_list = parsed(value)
        if isinstance(inner_list, list) and inner_list and all(map(is_message, inner_list)):
            return at, inner_list
        return at, [{"role": "assistant", "content": value}] if value.strip() else []
    if isinstance(value, list):
        messages = [] if at.endswith(_CHOICES) else list(filter(is_message, value))
        return (at, messages) if messages or not value else said_in(value[0], gold, at)
    if not isinstance(value, dict) or (at and role_of(unpacked(value)) == "assistant"):
        return at, [value] if isinstance(value, dict) else []
    paths = {name: f"{at}.{name}".lstrip(".") for name in (*_TEXTS, *(("message", "body") if at else ()))}
    inner = (said_in(value[name], gold, path) for name, path in paths.items() if name in value and path != gold)
    words: list[Json] = [{**value, "role": "assistant"}] if at and {"content", "text", "parts"} & value.keys() else []
    return next((output for output in inner if output[1]), (at, words))


def messages_inside(item: JsonObject) -> list[Json]:
    """The messages inside an event: LangGraph's update of a node, an agent's input, the end of a model or tool call."""
    data, event = item.get("data"), item.get("event")
    if isinstance(data, dict) and event == "on_tool_end":
        output = data.get("output")
        result = unpacked(output) if isinstance(output, dict) else {"content": output}
        return [{**result, "type": "tool_result", "name": item.get("name"), "input": data.get("input")}]
    if isinstance(data, dict) and event == "on_chat_model_end":
        return output if isinstance(output := data.get("output"), list) else [output]
    is_update = all(isinstance(node, dict) and "messages" in node for node in item.values())
    is_event = is_update or isinstance(event, str) or kind_of(item) in _INPUTS
    return next((items for _, items in message_lists(item, _is_single)), []) if is_event else []


def _is_single(value: Json) -> bool:
    """Whether a value is one message, call, result or thought."""
    if not isinstance(value, dict) or "messages" in value:
        return False
    item = unpacked(value)
    return bool(role_of(item) or tool_use_in(item)) or kind_of(item) in THOUGHTS


def is_thought(block: JsonObject) -> bool:
    """Whether a part of a message is reasoning (Anthropic, Gemini, Bedrock)."""
    return kind_of(block) in THOUGHTS or block.get("thought") is True or "reasoningContent" in block


def thought_in(value: Json) -> str:
    """The text of reasoning, at any depth."""
    if isinstance(value, list):
        return "\n".join(filter(None, map(thought_in, value)))
    if isinstance(value, dict):
        names = ("thinking", "text", "content", "reasoning", "reasoningContent", "reasoningText", "summary")
        return next((text for name in names if (text := thought_in(value.get(name)))), "")
    return value if isinstance(value, str) else ""
