"""Message forms: converts the messages of other systems to those of OpenAI's chat completions.

Role, content, calls and results of a message are recognised by their `shapes`, or calls and results by marks in a text
(`text_calls`). Messages of chat completions do not change. Items, blocks, roles and calls that cannot be read are
counted by name.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

from coseek.core.files import Json, JsonObject
from coseek.models import written
from coseek.traces.calls import calls_in, is_finish, parsed, reasoning_and_words, text_of
from coseek.traces.shapes import (
    ROLES,
    THOUGHTS,
    holds_calls,
    holds_results,
    is_thought,
    kind_of,
    messages_inside,
    result_text,
    role_of,
    thought_in,
    tool_use_in,
    unpacked,
    with_content,
)
from coseek.traces.text_calls import call_mark_in, parts_in_text, results_in_text, without_heading, without_tag

_TEXTS = ("", "text", "input_text", "output_text", "user-prompt")
_QUIET = ("step-start", "step-finish", "document", "search_result")
"""Types of parts without content, or whose content is read with results."""
_PIECE = "\0piece"
"""Marks an item that is part of an assistant's message, and may be joined to the previous message."""


def chat_messages(value: Json, unread: Counter[str]) -> Json:
    """The messages of a record in the form of chat completions. `unread` counts the parts that cannot be read."""
    return _Forms(unread).messages(value) if isinstance(value, list) else value


def count_unread(unread: Counter[str], name: str, example: str) -> None:
    """Count an unread part by name. The first one is kept as an example."""
    unread[next((known for known in unread if known.startswith(name)), f"{name}, such as {example[:60]!r}")] += 1


class _Forms:
    """Converts the items of one conversation."""

    def __init__(self, unread: Counter[str]) -> None:
        self.unread = unread
        self.open = Counter[Json]()
        """Id → number of calls without a result so far; `None` for calls without an id. Some programs reuse ids."""
        self.repeated = set[str]()
        """Messages inside events so far, which later events repeat."""
        self.in_text = False
        """Whether the last message has calls in its text, so that the next message of a user holds their results."""

    def messages(self, items: Sequence[Json]) -> list[Json]:
        messages: list[Json] = []
        for item in items:
            for message in self._convert(item) if isinstance(item, dict) else [item]:
                last = messages[-1] if messages else None
                if not isinstance(message, dict):
                    messages.append(message)
                    continue
                self.open.update(call.ident for call in written.calls_in(message))
                if message.get("role") == "tool" and isinstance(ident := message.get("tool_call_id"), str | None):
                    self.open[ident] -= self.open[ident] > 0
                if message.pop(_PIECE, None) and isinstance(last, dict) and last.get("role") == "assistant":
                    _join(last, message)
                else:
                    messages.append(message)
        return messages

    def _convert(self, packed: JsonObject) -> Iterator[Json]:
        item = unpacked(packed)
        role = role_of(item)
        if not role:
            yield from self._item(item)
            return
        if role not in ROLES:
            self.unread[f"messages of the role {role!r}"] += 1
        follows_call, self.in_text = self.in_text, False
        is_foreign = item.get("role") != role
        item, parts = self._separate_calls({**with_content(item), "role": role})
        content = item.get("content")
        if parts or (isinstance(content, list) and any(map(_is_special, content))):
            blocks = content if isinstance(content, list) else [content] if content else []
            yield from self._split_at_results(item, [*parts, *blocks])
            return
        if isinstance(content, list):
            self._count_blocks(content)
            texts = [_text_part(block) for block in content]
            item = item if texts == content else {**item, "content": texts}
        if role == "assistant":
            yield from self._split_text(item)
        elif role == "tool" and isinstance(content, str | list):
            text = text_of(content) if isinstance(content, str) else result_text(content)
            text = without_heading(text) if is_foreign else without_tag(text)
            yield item if text == text_of(content) else {**item, "content": text}
        elif role == "user" and isinstance(content, str):
            results, rest = results_in_text(content, follows_call)
            for result in results:
                yield {"role": "tool", "content": result}
            if rest or not results:
                yield {**item, "content": rest} if results else item
        else:
            yield item

    def _separate_calls(self, item: JsonObject) -> tuple[JsonObject, list[Json]]:
        """The message with the calls that chat completions can express, and the other calls and results as parts."""
        extra_fields = item.get("additional_kwargs")  # LangChain, LlamaIndex
        has_calls = any(value and holds_calls(name) for name, value in item.items())
        for name, value in extra_fields.items() if isinstance(extra_fields, dict) else ():
            if not item.get(name) and (name == "tool_call_id" or (holds_calls(name) and not has_calls)):
                item = {**item, name: value}
        parts: list[Json] = []
        for name in [name for name, value in item.items() if value and (holds_calls(name) or holds_results(name))]:
            value = item[name] = parsed(item[name])
            rows = value if isinstance(value, list) else [value]
            uses = [tool_use_in(row) if isinstance(row, dict) else None for row in rows]
            if not any(use and use.result for use in uses) and len(written.calls_in({name: value})) == len(rows):
                continue
            parts += [row for row, use in zip(rows, uses, strict=True) if use]
            if lost_count := uses.count(None):
                self.unread["tool calls that cannot be read"] += lost_count
            else:
                del item[name]
        if item["role"] == "assistant" and "observations" in item and (calls := item.pop("tool_calls", None)):
            observation: JsonObject = {"content": item["observations"] or "", "error": item.get("error")}  # smolagents
            parts += [*cast(list[Json], calls), {"type": "tool_result", **observation}]
        return item, parts

    def _split_text(self, item: JsonObject) -> Iterator[Json]:
        """Split an assistant's message whose text contains calls or results."""
        text, words = text_of(item.get("content")), reasoning_and_words(item)[1]
        parts = [] if written.calls_in(item) else parts_in_text(text, words)
        if parts and (not calls_in(item) or any(part["type"] == "tool_result" for part in parts)):
            yield from self._split_at_results(item, cast(list[Json], parts))
            last_part = [part for part in parts if part["type"] != "text"][-1]
            self.in_text = last_part["type"] == "tool_use" and not is_finish(str(last_part["name"]))
            return
        if mark := call_mark_in(words):
            count_unread(self.unread, "messages with calls in their text that cannot be read", mark)
        yield item

    def _item(self, item: JsonObject) -> Iterator[Json]:
        """Convert an item without a role: a call, a result, reasoning, or an event with messages inside."""
        kind = kind_of(item)
        if tool_use_in(item):
            for message in self._split_at_results({"role": "assistant"}, [item]):
                yield {**message, _PIECE: True} if message["role"] == "assistant" else message
        elif kind in THOUGHTS:
            summary = item.get("summary")
            if text := thought_in(summary if isinstance(summary, list) and summary else item):
                yield {"role": "assistant", "content": "", "reasoning_content": text}
            else:
                self.unread[f"items of the type {kind!r} without a text"] += 1
        elif nested_messages := messages_inside(item):
            for nested_message in self.messages(nested_messages):
                if (written_out := json.dumps(nested_message, sort_keys=True)) not in self.repeated:
                    self.repeated.add(written_out)
                    yield nested_message
        elif kind or "event" in item:
            self.unread[f"items of the type {kind or item['event']!r}"] += 1
        else:
            yield item  # `checked_messages` refuses it, with its number

    def _split_at_results(self, item: JsonObject, blocks: Sequence[Json]) -> Iterator[JsonObject]:
        """Split a message at the results among its parts: calls become a field, and each result becomes a message."""
        rest: JsonObject = {name: value for name, value in item.items() if name not in ("content", "tool_calls")}
        blocks = [*cast(list[Json], item.get("tool_calls") or []), *blocks]
        self._count_blocks(blocks)
        texts: list[Json] = []
        thoughts: list[str] = []
        calls: list[Json] = []

        def message() -> Iterator[JsonObject]:
            if calls or thoughts or text_of(texts).strip():
                reasoning: JsonObject = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
                call_field: JsonObject = {"tool_calls": [*calls]} if calls else {}
                yield {**rest, "content": text_of([*texts]), **reasoning, **call_field}
            texts.clear()
            thoughts.clear()
            calls.clear()

        for block in blocks:
            use = tool_use_in(block) if isinstance(block, dict) else None
            if use is not None:
                # A result or another field may repeat a call.
                known_idents = {call["id"] for call in cast(list[JsonObject], calls)}
                known_idents |= {ident for ident, count in self.open.items() if count}
                if use.call and not (use.call["id"] in known_idents and (use.result or use.call["id"] is not None)):
                    calls.append(use.call)
                if use.result:
                    yield from message()
                    yield use.result
            elif isinstance(block, dict) and is_thought(block):
                thoughts.append(thought_in(block))
            elif isinstance(block, dict) and kind_of(block) == "system-prompt":
                yield {"role": "system", "content": thought_in(block)}
            elif not isinstance(block, dict) or kind_of(block) in _TEXTS:
                texts.append(_text_part(block))
        yield from message()

    def _count_blocks(self, blocks: Sequence[Json]) -> None:
        for block in blocks:
            if isinstance(block, dict) and not _is_special(block):
                kind = kind_of(block) or ("" if {"text", "content"} & block.keys() else next(iter(block), ""))
                if kind not in (*_TEXTS, *_QUIET):
                    self.unread[f"content blocks of the type {kind!r}"] += 1


def _text_part(block: Json) -> Json:
    """A part of text with its text under that name; other parts as they are."""
    if isinstance(block, dict) and kind_of(block) in _TEXTS and isinstance(text := block.get("content"), str):
        return {"type": "text", "text": text, **block}
    return block


def _is_special(block: Json) -> bool:
    """Whether a part is a call, a result, reasoning or a system prompt."""
    if not isinstance(block, dict):
        return False
    return tool_use_in(block) is not None or is_thought(block) or kind_of(block) == "system-prompt"


def _join(message: JsonObject, piece: JsonObject) -> None:
    """Add an item of OpenAI's Responses to the previous message: calls follow words and other calls."""
    for name, value in piece.items():
        old_value = message.get(name)
        if isinstance(value, list) and isinstance(old_value, list):
            message[name] = [*old_value, *value]
        elif not old_value:
            message[name] = value
        elif name == "reasoning_content":
            message[name] = f"{old_value}\n{value}"
