"""Chat: encodes messages with a tokenizer's chat template, or a plain one. Message contents are data.

The template is rendered with placeholders instead of contents and split at them, so that only the template's own text
may contain special tokens. Its text after a turn with tool calls is the difference of two renderings of the
conversation, with and without the results. The contents of both are placeholders: sampled text and tool results never
pass through a template, and a row only grows.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain, groupby, pairwise
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import BeforeValidator

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.core.strict_json import fault_in
from coseek.models.model import Tokenizer
from coseek.models.tokenizer import HfTokenizer, alternatives
from coseek.models.written import (
    calls_in,
    content_of,
    ending_empty_reasoning,
    message_of,
    opened_at_end,
    parameters_of,
    read_turn,
    reasoning_in,
    unread,
)

ROLES = ("system", "user", "assistant")
_MARK = re.compile("(\u2003?)\ue000([0-9]+)\ue001(\u2003?)")
"""A placeholder with a space on either side, which templates that trim contents remove. No template contains these
characters, and contents never pass through one."""
_DATE = datetime(2025, 1, 1)
"""The date for templates that write today's date into a prompt (gpt-oss, Llama 3.2): with the real one a run could be
neither resumed nor audited on another day."""
_CLOCK = "".join(f"|replace('%{code}', '{_DATE.strftime(f'%{code}')}')" for code in "YymBbdAaHMSfj")
_FIXED_DATE = f"{{%- macro strftime_now(form) -%}}{{{{ form{_CLOCK} }}}}{{%- endmacro -%}}"
"""Put before a template, which then has no other clock. The library passes no function into a template."""


def _as_text(value: object) -> object:
    return ("on" if value else "off") if isinstance(value, bool) else value


ChatTemplate: TypeAlias = Annotated[Literal["auto", "on", "off"], BeforeValidator(_as_text)]
"""Whether a policy's prompt uses its tokenizer's chat template: `auto` if the tokenizer has one. YAML reads `on` and
`off` as booleans."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of the text of a prompt."""

    text: str
    trusted: bool = False
    """Whether it is coseek's or the template's text, so that special tokens in it are tokens."""


Content: TypeAlias = Sequence[TextPart | tuple[int, ...]]
"""The content of a message, in pieces of text or as ids."""


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message."""

    role: str
    content: str


def encode_content(tokenizer: Tokenizer, content: Content) -> tuple[int, ...]:
    """Encode adjacent pieces of text as one text. If data contain a special token, each piece is encoded alone, so that
    it remains ordinary characters."""
    ids: list[int] = []
    for is_text, group in groupby(content, lambda piece: isinstance(piece, TextPart)):
        pieces = [*group]
        texts = [piece for piece in pieces if isinstance(piece, TextPart)]
        if not is_text:
            ids += chain.from_iterable(piece for piece in pieces if isinstance(piece, tuple))
        elif all(part.trusted or tokenizer.encode(part.text) == tokenizer.encode_data(part.text) for part in texts):
            ids += tokenizer.encode("".join(part.text for part in texts))
        else:
            for part in texts:
                ids += tokenizer.encode(part.text) if part.trusted else tokenizer.encode_data(part.text)
    return tuple(ids)


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer comes with a chat template."""
    return isinstance(tokenizer, HfTokenizer) and tokenizer.fast.chat_template is not None


def uses_chat_template(tokenizer: Tokenizer, wanted: ChatTemplate) -> bool:
    """Whether prompts use the chat template. Raises `SettingError` if one is required and there is none."""
    if wanted == "on" and not has_chat_template(tokenizer):
        raise SettingError("chat_template=on, and the model's tokenizer has no chat template; take auto or off")
    return wanted != "off" and has_chat_template(tokenizer)


def chat_frame(tokenizer: Tokenizer, given: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after a user's message, up to the assistant's answer. Before an answer that is `given`, without
    reasoning, reasoning that the template opens is closed.

    Without a chat template: the beginning-of-text token if the tokenizer puts one in front of texts. Raises `DataError`
    for a template that drops or repeats the message.
    """
    if not isinstance(tokenizer, HfTokenizer) or not has_chat_template(tokenizer):
        return begin_ids(tokenizer), ()
    before, *middle, after = chat_pieces(tokenizer, [("user", [()])])
    if middle != [()]:
        raise DataError(f"the chat template of {tokenizer.source} repeats what a user says; correct its chat_template")
    end = encode_content(tokenizer, [after])
    open_mark = opened_at_end(tokenizer.decode(end)) if given else ""
    return encode_content(tokenizer, [before]), (*end, *tokenizer.encode(ending_empty_reasoning(open_mark)))


def written_for_assistant(tokenizer: HfTokenizer) -> str:
    """What the chat template writes at the end of a prompt after the header of the assistant's message, such as a mark
    that opens reasoning. Empty for a template that takes no message of the assistant."""
    try:
        *_, prompt_end = chat_pieces(tokenizer, [("user", [()])])
        _, _, header, *_ = chat_pieces(tokenizer, [("user", [()]), ("assistant", [()])])
    except DataError:
        return ""
    assert isinstance(prompt_end, TextPart) and isinstance(header, TextPart)
    return prompt_end.text[len(header.text) :] if prompt_end.text.startswith(header.text) else ""


def chat_pieces(
    tokenizer: HfTokenizer,
    messages: Sequence[tuple[str, Content]],
    *,
    goes_on: bool = False,
    tools: Sequence[JsonObject] = (),
) -> list[TextPart | tuple[int, ...]]:
    """Put messages, (role, content) each, into the chat template, up to the assistant's answer. The last piece is the
    text after the last content. The template gets `tools`, the JSON schemas of what the assistant can call.

    Contents are trimmed where the template trims them, except the end of one that `goes_on`. A system message that the
    template refuses or drops is put at the start of the user's message, as in Gemma 3's template. Raises `DataError`
    for a template that refuses the messages, or drops one that is not empty.
    """
    roles = [role for role, _ in messages]
    marks: list[JsonObject] = [
        {"role": role, "content": f"\u2003\ue000{index}\ue001\u2003"} for index, role in enumerate(roles)
    ]
    try:
        split = _MARK.split(render_template(tokenizer, marks, tools))
        rendered_indices = set(map(int, split[2::4]))
        for index, (role, content) in enumerate(messages):
            if content and index not in rendered_indices:
                raise DataError(
                    f"the chat template of {tokenizer.source} drops what the {role} says; correct its chat_template"
                )
    except DataError:
        if roles[:2] != ["system", "user"]:
            raise
        user = ("user", [*messages[0][1], TextPart("\n\n"), *messages[1][1]])
        return chat_pieces(tokenizer, [user, *messages[2:]], goes_on=goes_on, tools=tools)
    pieces: list[TextPart | tuple[int, ...]] = [TextPart(split[0], trusted=True)]
    for start in range(1, len(split), 4):
        before, number, after, text = split[start : start + 4]
        trims_end = not after and not (goes_on and int(number) == len(messages) - 1)
        pieces += [*_strip(messages[int(number)][1], not before, trims_end), TextPart(text, trusted=True)]
    return pieces


def _strip(content: Content, start: bool, end: bool) -> list[TextPart | tuple[int, ...]]:
    """The content without white space at its start and its end, where these are text."""
    pieces = [*content]
    while start and pieces and isinstance(first := pieces[0], TextPart):
        pieces[:1] = [TextPart(text, first.trusted)] if (text := first.text.lstrip()) else []
        start = not text
    while end and pieces and isinstance(last_part := pieces[-1], TextPart):
        pieces[-1:] = [TextPart(text, last_part.trusted)] if (text := last_part.text.rstrip()) else []
        end = not text
    return pieces


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The beginning-of-text token, if the tokenizer puts one before texts."""
    if not isinstance(tokenizer, HfTokenizer):
        return ()
    first = list(tokenizer.fast("").input_ids)[:1]
    return tuple(first) if first == [tokenizer.fast.bos_token_id] else ()


def render_template(
    tokenizer: HfTokenizer,
    messages: Sequence[JsonObject],
    tools: Sequence[JsonObject] = (),
    *,
    answers: bool = True,
) -> str:
    """Render messages with the chat template, with `answers` up to the assistant's answer. Raises `DataError` for a
    template that refuses them."""
    from jinja2 import TemplateError

    template_messages = cast("list[dict[str, str]]", [*messages])  # what the library declares; templates take any JSON
    try:
        template = tokenizer.fast.get_chat_template(tools=[*tools] or None)
        template = template if "strftime_now" not in template else _FIXED_DATE + template
        text = tokenizer.fast.apply_chat_template(
            template_messages, [*tools] or None, chat_template=template, tokenize=False, add_generation_prompt=answers
        )
    except (TemplateError, ValueError, TypeError) as error:
        raise DataError(f"the model's chat template does not take these messages: {str(error)[:200]}") from None
    return str(text)


_SLOT = re.compile("\ue000([0-9]+)(\n|\\\\n)\ue001")
"""A placeholder. A template that writes a content as JSON escapes its line break."""
_FORMS = ((False, False), (True, False), (False, True), (True, True))
"""(arguments as JSON texts, one call per turn): alternatives for templates that refuse several calls with objects."""
Names: TypeAlias = tuple[str, ...]
"""The tools that one turn called, in order; empty for a turn that a user's message answered."""


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """The template's text around the results of one turn."""

    before: tuple[str, ...]
    """The text in front of each result."""
    quoted: tuple[bool, ...]
    """Whether the template writes each result as the inside of a JSON text."""
    after: str
    """The text after the last result, up to the assistant's next turn."""
    closer: str
    """The special token with which the template ends such a turn; "" without one."""

    def fill(self, results: Sequence[str], tokenizer: HfTokenizer) -> list[tuple[int, ...]]:
        """The ids of each result in its frame, encoded as one text. The last one of the turn ends where the assistant's
        next turn begins."""
        parts: list[TextPart] = []
        ends: list[int] = []
        for before, is_quoted, text in zip(self.before, self.quoted, map(str.strip, results), strict=False):
            content = json.dumps(text, ensure_ascii=False)[1:-1] if is_quoted else text
            parts += [TextPart(before, trusted=True), TextPart(content)]
            ends.append((ends[-1] if ends else 0) + len(before) + len(content))
        if len(results) == len(self.before):
            parts.append(TextPart(self.after, trusted=True))
        ids = encode_content(tokenizer, parts)
        cuts = [0]
        for end in ends[:-1]:
            cut = bisect_left(range(len(ids)), end, cuts[-1], key=lambda count: len(tokenizer.decode(ids[:count])))
            cuts.append(cut)
        return [ids[start:end] for start, end in pairwise([*cuts, len(ids)])]


@dataclass(frozen=True)
class ToolChat:
    """Conversations with tools in one tokenizer's chat template."""

    tokenizer: HfTokenizer
    tools: tuple[JsonObject, ...]
    """The schemas of the tools, in OpenAI's form."""
    _frames: dict[tuple[tuple[str, ...], tuple[Names, ...], str], ResultFrame] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `SettingError` for a template that does not show tools, or to which no result can be appended."""
        source, way_out = self.tokenizer.source, "take a protocol whose calls are plain text, such as react"
        prompt = "".join(self._prompt)
        if unknown_names := [name for name in parameters_of(self.tools) if name not in prompt]:
            raise SettingError(f"the chat template of {source} does not show the tool {unknown_names[0]!r}; {way_out}")
        try:
            self.frame(("user",), (tuple(parameters_of(self.tools))[:1],))
        except DataError as error:
            raise SettingError(f"{source}: {error}; {way_out}") from None

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The special tokens with which the template ends turns. Base models continue after those that their generation
        settings do not name, and would write results themselves."""
        closers: dict[str, None] = {}
        for names in (tuple(parameters_of(self.tools))[:1], ()):
            with suppress(DataError):
                closers[self.frame(("user",), (names,)).closer] = None
        return tuple(filter(None, closers))

    def end_of(self, ids: Sequence[int]) -> str:
        """The special token that ends a turn, or ""."""
        text = self.tokenizer.decode(ids[-1:])
        return text if self._special_pattern.fullmatch(text) else ""

    def read(self, ids: Sequence[int]) -> JsonObject:
        """Parse the assistant's message in a turn, with the tokenizer's response template, else with `read_turn`."""
        text = self.tokenizer.decode(ids[:-1] if self.end_of(ids) else ids)
        prefix = self._prompt[-1]
        if getattr(self.tokenizer.fast, "response_template", None) is None:
            return read_turn(text, opened_at_end(prefix), self.tools)
        try:
            message = self.tokenizer.fast.parse_response(text, prefix=prefix, tools=[*self.tools])
            content, _ = content_of(message.get("content"))
            calls = [unread(call.name) if fault_in({call.name: call.arguments}) else call for call in calls_in(message)]
            return message_of(content, reasoning_in(message), calls)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return message_of("", "", [unread(text)])

    def frame(self, roles: Sequence[str], turns: Sequence[Names], end: str = "") -> ResultFrame:
        """The template's text around the results of the last of `turns`, which ended with the special token `end`.
        `roles` are those of the prompt's messages.

        Raises `DataError` if the template refuses such a conversation, or changes the row before its end.
        """
        key = (tuple(roles), tuple(turns), end)
        if key not in self._frames:
            self._frames[key] = self._frame(*key)
        return self._frames[key]

    @cached_property
    def _prompt(self) -> list[str]:
        """The template's own text around a question."""
        pieces = chat_pieces(self.tokenizer, [("user", [()])], goes_on=True, tools=self.tools)
        return [piece.text for piece in pieces if isinstance(piece, TextPart)]

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        special_tokens = [token.content for token in self.tokenizer.fast.added_tokens_decoder.values() if token.special]
        return alternatives(special_tokens)

    def _frame(self, roles: tuple[str, ...], turns: tuple[Names, ...], end: str) -> ResultFrame:
        errors: list[DataError] = []
        for as_text, single in _FORMS:
            try:
                return self._difference(_PlaceholderChat(as_text, single), roles, turns, end)
            except DataError as error:
                errors.append(error)
        raise errors[0]

    def _difference(
        self, chat: "_PlaceholderChat", roles: tuple[str, ...], turns: tuple[Names, ...], end: str
    ) -> ResultFrame:
        past = [*map(chat.message, roles), *(message for names in turns[:-1] for message in chat.turn(names))]
        last = chat.last
        turn, *results = chat.turn(turns[-1])
        anchor = chat.last - len(results)
        expected_numbers = [str(number) for number in range(anchor + 1, chat.last + 1)]
        before, closed, full = (
            render_template(self.tokenizer, messages, self.tools, answers=answers)
            for messages, answers in (([*past], True), ([*past, turn], False), ([*past, turn, *results], True))
        )
        prefix = before[: _end_of(before, last)]
        if not full.startswith(prefix):
            index = next((i for i, (a, b) in enumerate(zip(full, prefix, strict=False)) if a != b), len(full))
            raise DataError(f"the chat template changes earlier messages, from {prefix[index : index + 40]!r} on")
        closed, full = closed[_end_of(closed, anchor) :], full[_end_of(full, anchor) :]
        first, *pieces = _SLOT.split(full)
        if pieces[::3] != expected_numbers:
            raise DataError("the chat template drops or moves what a tool returns")
        texts = [first[self._frame_start(closed, first, end) :], *pieces[2::3]]
        closers = self._special_pattern.findall(closed) or self._special_pattern.findall(texts[0])[:1] or [""]
        quoted = tuple(line != "\n" for line in pieces[1::3])
        return ResultFrame(tuple(texts[:-1]), quoted, texts[-1], closers[-1])

    def _frame_start(self, closed: str, frame: str, end: str) -> int:
        """Where the frame continues after the sampled text. `closed` ends a turn without results, and `frame` one with
        results; both begin inside the turn."""
        if end and (index := frame.find(end)) >= 0:
            return index + len(end)
        closers = list(self._special_pattern.finditer(closed))
        body = closed[: closers[-1].start()] if closers else closed.rstrip()
        if not frame.startswith(body):
            raise DataError("the chat template writes a turn otherwise when a result follows")
        closer = self._special_pattern.search(frame, len(body)) if closers else None
        if closer is None:
            return len(body)
        return closer.end() if end else closer.start()


@dataclass
class _PlaceholderChat:
    """Creates messages with numbered placeholders for contents, in one of the `_FORMS`."""

    as_text: bool
    single: bool
    last: int = -1
    """The number of the latest placeholder."""

    def message(self, role: str) -> JsonObject:
        return {"role": role, "content": self._placeholder()}

    def turn(self, names: Names) -> list[JsonObject]:
        """A turn of the assistant, without its reasoning, and the results or the user's message after it."""
        if not names:
            return [self.message("assistant"), self.message("user")]
        # Mistral requires ids of nine letters and digits.
        named_calls = [(f"call{number:05d}", name) for number, name in enumerate(names)]
        calls = [self._call(call_id, name) for call_id, name in (named_calls[:1] if self.single else named_calls)]
        results: list[JsonObject] = [
            {**self.message("tool"), "name": name, "tool_call_id": call_id} for call_id, name in named_calls
        ]
        return [{"role": "assistant", "content": "", "tool_calls": [*calls]}, *results]

    def _call(self, call_id: str, name: str) -> JsonObject:
        query: JsonObject = {"query": self._placeholder()}
        arguments = json.dumps(query, ensure_ascii=False) if self.as_text else query
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _placeholder(self) -> str:
        self.last += 1
        return f"\ue000{self.last}\n\ue001"


def _end_of(text: str, number: int) -> int:
    """The position after a placeholder. Raises `DataError` if the template dropped it."""
    ends = [mark.end() for mark in _SLOT.finditer(text) if int(mark[1]) == number]
    if not ends:
        raise DataError("the chat template drops what a message says")
    return ends[-1]
