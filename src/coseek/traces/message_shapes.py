"""Message shapes: role and content of other programs' messages, whatever the names of their fields and envelopes.

Covers messages of LangChain in any dump, LlamaIndex, Haystack, AutoGen, Gemini, the AI SDK and ChatGPT, steps of
smolagents, and messages inside events of LangGraph and LlamaIndex.
"""

from collections.abc import Callable, Iterator

from coseek.core.files import Json, JsonObject
from coseek.traces.calls import parsed
from coseek.traces.tool_shapes import kind_of, letters, tool_use_in

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
_CONTENTS = ("parts", "blocks", "content", "message", "value", "text")
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
    return kinds.get(kind, "") if any(name in item for name in _CONTENTS) else ""


def with_content(item: JsonObject) -> JsonObject:
    """The message with its content in the field `content`: a text, blocks, or nothing."""
    name = next((name for name in _CONTENTS if item.get(name)), "content")
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
