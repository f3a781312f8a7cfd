"""Message forms: the messages of other systems, written as those of OpenAI's chat completions.

Read are Anthropic's content blocks (`tool_use`, `tool_result`, `thinking`), the items of OpenAI's Responses,
LangChain's messages (`type: human`), other names of roles (`model`, `human`), `<tool_response>` and `<information>` in
the text of a user (Hermes, Qwen), and `<search>` in that of an assistant (Search-R1). Other messages stay as they are.
Items, blocks, roles and calls that are not read are counted by name.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.models import written
from coseek.traces.calls import reasoning_and_words, text_of

ITEMS = frozenset(
    ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
    + ("web_search_call", "file_search_call", "human", "ai", "system", "tool", "constructor")
)
"""Types of messages without a role."""
_LANGCHAIN = {
    "human": "user", "ai": "assistant", "system": "system", "tool": "tool", "HumanMessage": "user",
    "AIMessage": "assistant", "SystemMessage": "system", "ToolMessage": "tool",
}  # fmt: skip
_TEXT = (None, "text", "input_text", "output_text")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use", "tool-call")
_RESULTS = ("tool_result", "tool-result")
_THOUGHTS = ("thinking", "reasoning")
_FOUND = ("search_result", "web_search_result")
_RESPONSE = re.compile("<(tool_response|information)>")
_SEARCH = re.compile("<(search)>")
_ROLES = {
    "human": "user", "customer": "user", "ai": "assistant", "model": "assistant", "bot": "assistant",
    "gpt": "assistant", "chatbot": "assistant",
}  # fmt: skip
_KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_CALL = re.compile(
    r"^[ \t]*Action[ \t]*:|<(?:tool_call|function_calls|search)>|<function=|<\|python_tag\|>|\[TOOL_CALLS\]"
    "|<\uff5ctool\u2581calls\u2581begin\uff5c>",
    re.MULTILINE,
)
"""Begins a call in the text of an assistant, in the spellings of several models."""


def chat_messages(value: Json, unread: Counter[str]) -> Json:
    """The messages of a record in the form of chat completions; `unread` counts what is not read."""
    if not isinstance(value, list):
        return value
    messages: list[Json] = []
    for item in value:
        for message in _messages(item, unread) if isinstance(item, dict) else [item]:
            last = messages[-1] if messages else None
            if isinstance(message, dict) and message.pop(_PIECE, None) and _goes_on(last):
                _join(cast(JsonObject, last), message)
            else:
                messages.append(message)
    return messages


_PIECE = "\0piece"
"""Marks a part of an assistant's message, which the message before it may take in."""


def _goes_on(last: Json) -> bool:
    return isinstance(last, dict) and last.get("role") == "assistant"


def _join(message: JsonObject, piece: JsonObject) -> None:
    """Add an item of Responses to the message before it: calls follow words and other calls."""
    for name, value in piece.items():
        before = message.get(name)
        if isinstance(value, list) and isinstance(before, list):
            message[name] = [*before, *value]
        elif not before:
            message[name] = value
        elif name == "reasoning_content":
            message[name] = f"{before}\n{value}"


def _messages(item: JsonObject, unread: Counter[str]) -> Iterator[Json]:
    if not isinstance(item.get("role"), str):
        plain = _langchain(item)
        if plain is None:
            yield from _item(item, unread)
            return
        item = plain
    item = _named(item, unread)
    content = item.get("content")
    if item["role"] == "assistant":
        yield from _said(item, unread)
    elif isinstance(content, str) and item["role"] == "user" and (found := _parted(content, _RESPONSE))[1:]:
        for one in found[1::2]:
            yield {"role": "tool", "content": one.strip()}
        if rest := "".join(map(str.strip, found[::2])):
            yield {**item, "content": rest}
    elif isinstance(content, list):
        yield from _blocks(item, content, unread)
    else:
        yield item


def _named(item: JsonObject, unread: Counter[str]) -> JsonObject:
    """The message with its role as chat completions name it, and its calls as a list beside the text."""
    role = str(item["role"])
    role = role if role in _KNOWN_ROLES else _ROLES.get(role.lower(), role.lower())
    if role not in _KNOWN_ROLES:
        unread[f"messages of the role {role!r}"] += 1
    given = item.get("additional_kwargs")
    for name in ("tool_calls", "function_call", "tool_call_id"):
        if isinstance(given, dict) and given.get(name) and not item.get(name):
            item = {**item, name: given[name]}
        if isinstance(value := item.get(name), str) and name != "tool_call_id":
            with suppress(InvalidJson):
                item = {**item, name: parse_strict(value)}
    listed = item.get("tool_calls") or []
    lost = len(listed) - len(written.calls_in({"tool_calls": listed})) if isinstance(listed, list) else 1
    if lost:
        unread["tool calls that cannot be read"] += lost
    return {**item, "role": role}


def _said(item: JsonObject, unread: Counter[str]) -> Iterator[Json]:
    """Split a message of an assistant whose text holds searches and their results."""
    content = item.get("content")
    if isinstance(content, list):
        yield from _blocks(item, content, unread)
        return
    words = reasoning_and_words(item)[1]
    if isinstance(content, str) and _parted(words, _SEARCH)[1:] and not written.calls_in(item):
        for at, piece in enumerate(_parted(content, _RESPONSE)):
            parts = _parted(piece, _SEARCH)
            rest = "".join(parts[::2]).strip()
            queries = map(str.strip, parts[1::2])
            calls: list[Json] = [{"function": {"name": "search", "arguments": {"query": query}}} for query in queries]
            if at % 2:
                yield {"role": "tool", "content": piece.strip()}
            elif calls:
                yield {**item, "content": rest, "tool_calls": calls}
            elif rest:
                yield {**item, "content": rest}
        return
    if _TEXT_CALL.search(words):
        unread["messages with calls in their text that cannot be read"] += 1
    yield item


def _parted(text: str, opening: re.Pattern[str]) -> list[str]:
    """Split a text at its tags: texts outside and inside them alternate, and the first and the last are outside. A tag
    ends at the first closing tag of its name; a tag without one is text. Runs in linear time."""
    pieces: list[str] = []
    at, unclosed = 0, set[str]()
    for tag in opening.finditer(text):
        closing = f"</{tag[1]}>"
        if tag.start() < at or closing in unclosed:
            continue
        end = text.find(closing, tag.end())
        if end < 0:
            unclosed.add(closing)
            continue
        pieces += [text[at : tag.start()], text[tag.end() : end]]
        at = end + len(closing)
    return [*pieces, text[at:]]


def _langchain(item: JsonObject) -> JsonObject | None:
    """Convert a message of LangChain, in any of its dumps. Returns `None` for anything else."""
    kind, data = item.get("type"), item.get("data")
    if kind == "constructor" and isinstance(path := item.get("id"), list) and path:
        kind, data = path[-1], item.get("kwargs")
    role = _LANGCHAIN.get(kind) if isinstance(kind, str) else None
    if role is None or (role == "system" and "content" not in (data if isinstance(data, dict) else item)):
        return None
    return {**(data if isinstance(data, dict) else item), "role": role}


def _item(item: JsonObject, unread: Counter[str]) -> Iterator[Json]:
    """Convert an item of Responses."""
    kind, ident = item.get("type"), item.get("call_id", item.get("id"))
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments", item.get("input"))
        yield _called(ident, item.get("name"), arguments)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield {"role": "tool", "tool_call_id": ident, "content": _result(item.get("output"))}
    elif kind == "reasoning":
        summary = item.get("summary")
        text = text_of(summary if isinstance(summary, list) and summary else item.get("content"))
        if text:
            yield {"role": "assistant", "content": "", "reasoning_content": text}
        else:
            unread["items of the type 'reasoning' without a text"] += 1
    elif kind in ("web_search_call", "file_search_call"):
        action = item.get("action")
        arguments = {"query": action.get("query") if isinstance(action, dict) else item.get("queries")}
        yield _called(ident, str(kind).removesuffix("_call"), arguments)
        if isinstance(results := item.get("results"), list):
            yield {"role": "tool", "tool_call_id": ident, "content": json.dumps(results, ensure_ascii=False)}
    elif isinstance(kind, str):
        unread[f"items of the type {kind!r}"] += 1
    else:
        yield item  # refused with its number


def _called(ident: Json, name: Json, arguments: Json) -> JsonObject:
    return {"role": "assistant", "content": "", "tool_calls": [_call(ident, name, arguments)], _PIECE: True}


def _call(ident: Json, name: Json, arguments: Json) -> JsonObject:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def _blocks(item: JsonObject, content: list[Json], unread: Counter[str]) -> Iterator[Json]:
    """Split a message with content blocks: calls become a field, and each result a message."""
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    for kind in kinds:
        if not (kind in _TEXT or kind in _CALLS or kind in _THOUGHTS or _is_result(kind)):
            unread[f"content blocks of the type {kind!r}"] += 1
    if not any(kind in _CALLS or kind in _THOUGHTS or _is_result(kind) for kind in kinds):
        yield item
        return
    rest: JsonObject = {name: value for name, value in item.items() if name != "content"}
    texts: list[Json] = []
    thoughts: list[str] = []
    calls: list[Json] = []

    def message() -> Iterator[JsonObject]:
        if texts or thoughts or calls:
            reasoning: JsonObject = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
            called: JsonObject = {"tool_calls": [*calls]} if calls else {}
            yield {**rest, "content": text_of([*texts]), **reasoning, **called}
        texts.clear()
        thoughts.clear()
        calls.clear()

    for part, kind in zip(content, kinds, strict=True):
        if not isinstance(part, dict) or kind in _TEXT:
            texts.append(part)
        elif kind in _CALLS:
            ident, name = part.get("id", part.get("toolCallId")), part.get("name", part.get("toolName"))
            calls.append(_call(ident, name, part.get("input", part.get("args"))))
        elif kind in _THOUGHTS:
            thoughts.append(text_of(part.get("thinking", part.get("text"))))
        elif _is_result(kind):
            yield from message()
            yield _result_message(part)
    yield from message()


def _is_result(kind: Json) -> bool:
    return isinstance(kind, str) and (kind in _RESULTS or kind.endswith("_tool_result"))


def _result_message(part: JsonObject) -> JsonObject:
    text = _result(next((part[key] for key in ("content", "result", "output") if key in part), None))
    ident = part.get("tool_use_id", part.get("toolCallId"))
    answer: JsonObject = {"role": "tool", "tool_call_id": ident, "content": text}
    return {**answer, "fault": text or "the tool failed"} if part.get("is_error") is True else answer


def _result(content: Json) -> str:
    """The text of a result; blocks of found pages become a list of passages."""
    if isinstance(content, list) and any(isinstance(one, dict) and one.get("type") in _FOUND for one in content):
        pages: list[Json] = [
            {"url": one.get("source", one.get("url")), "title": one.get("title"), "text": text_of(one.get("content"))}
            for one in content
            if isinstance(one, dict)
        ]
        return json.dumps(pages, ensure_ascii=False)
    return text_of(content)
