"""Tool chat: frames turns with tool calls by a tokenizer's own chat template, and reads the calls of a turn.

What the template writes behind a turn is the difference of two renderings of the conversation, with and without the
results. The contents of both are placeholders: what was sampled and what tools return never passes through a template,
and a row only grows.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from typing import TypeAlias

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.core.strict_json import fault_in
from coseek.models.chat import TextPart, chat_pieces, encode_content, templated
from coseek.models.tokenizer import HfTokenizer, alternatives
from coseek.models.written import calls_in, content_of, opened_at_end, reasoning_in
from coseek.models.written_calls import message_of, parameters_of, read_turn, unread

_MARK = re.compile("\ue000([0-9]+)(\n|\\\\n)\ue001")
"""A placeholder. A template that writes a content as JSON escapes its line break."""
_NOTHING = re.compile("(?!)")
_FORMS = ((False, False), (True, False), (False, True), (True, True))
"""(arguments as JSON texts, one call a turn): what templates take instead of several calls with objects."""
Names: TypeAlias = tuple[str, ...]
"""The tools that one turn called, in order; empty for a turn that a user's message answered."""


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """What stands around the results of one turn."""

    before: tuple[str, ...]
    """The text in front of each result."""
    quoted: tuple[bool, ...]
    """Whether the template writes each result as the inside of a JSON text."""
    after: str
    """The text after the last result, up to the assistant's next turn."""
    closer: str
    """The special token with which the template ends such a turn; "" without one."""

    def filled(self, results: Sequence[str], tokenizer: HfTokenizer) -> list[tuple[int, ...]]:
        """The ids of each result in its frame, encoded as one text. The last one of the turn ends where the assistant's
        next turn begins."""
        parts: list[TextPart] = []
        ends: list[int] = []
        for before, quoted, text in zip(self.before, self.quoted, map(str.strip, results), strict=False):
            content = json.dumps(text, ensure_ascii=False)[1:-1] if quoted else text
            parts += [TextPart(before, trusted=True), TextPart(content)]
            ends.append((ends[-1] if ends else 0) + len(before) + len(content))
        if len(results) == len(self.before):
            parts.append(TextPart(self.after, trusted=True))
        ids = encode_content(tokenizer, parts)

        def reaches(count: int) -> int:
            return len(tokenizer.decode(ids[:count]))

        cuts = [0]
        for end in ends[:-1]:
            cuts.append(bisect_left(range(len(ids)), end, lo=cuts[-1], key=reaches))
        cuts.append(len(ids))
        return [ids[start:end] for start, end in pairwise(cuts)]


@dataclass(frozen=True)
class ToolChat:
    """Conversations with tools in one tokenizer's chat template."""

    tokenizer: HfTokenizer
    tools: tuple[JsonObject, ...]
    """The schemas of the tools, in OpenAI's form."""
    _frames: dict[tuple[tuple[str, ...], tuple[Names, ...], str], ResultFrame] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `SettingError` for a template that does not show tools, or that no result can be appended to."""
        source, way_out = self.tokenizer.source, "take a protocol whose calls are plain text, such as react"
        shown = "".join(self._prompt)
        if unknown := [name for name in parameters_of(self.tools) if name not in shown]:
            raise SettingError(f"the chat template of {source} does not show the tool {unknown[0]!r}; {way_out}")
        try:
            self.frame(("user",), (tuple(parameters_of(self.tools))[:1],))
        except DataError as error:
            raise SettingError(f"{source}: {error}; {way_out}") from None

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The special tokens with which the template ends turns. Base models go on after those that their generation
        settings do not name, and would write results themselves."""
        closers: dict[str, None] = {}
        for names in (tuple(parameters_of(self.tools))[:1], ()):
            with suppress(DataError):
                closers[self.frame(("user",), (names,)).closer] = None
        return tuple(filter(None, closers))

    def end_of(self, ids: Sequence[int]) -> str:
        """The special token that ends a turn, or ""."""
        text = self.tokenizer.decode(ids[-1:])
        return text if self._special.fullmatch(text) else ""

    def read(self, ids: Sequence[int]) -> JsonObject:
        """The assistant's message in a turn: by the tokenizer's response template, else by `read_turn`."""
        text = self.tokenizer.decode(ids[:-1] if self.end_of(ids) else ids)
        prefix = self._prompt[-1]
        if getattr(self.tokenizer.fast, "response_template", None) is None:
            return read_turn(text, opened_at_end(prefix), self.tools)
        try:
            read = self.tokenizer.fast.parse_response(text, prefix=prefix, tools=[*self.tools])
            content, _ = content_of(read.get("content"))
            calls = [unread(call.name) if fault_in({call.name: call.arguments}) else call for call in calls_in(read)]
            return message_of(content, reasoning_in(read), calls)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return message_of("", "", [unread(text)])

    def frame(self, roles: Sequence[str], turns: Sequence[Names], end: str = "") -> ResultFrame:
        """What stands around the results of the last of `turns`, which ended with the special token `end`. `roles` are
        those of the prompt's messages.

        Raises `DataError` where the template takes no such conversation, or where the row would not be extended.
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
    def _special(self) -> re.Pattern[str]:
        special = [token.content for token in self.tokenizer.fast.added_tokens_decoder.values() if token.special]
        return alternatives(special) or _NOTHING

    def _frame(self, roles: tuple[str, ...], turns: tuple[Names, ...], end: str) -> ResultFrame:
        refused: DataError | None = None
        for as_text, single in _FORMS:
            try:
                return self._difference(_Talk(as_text, single), roles, turns, end)
            except DataError as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def _difference(self, talk: "_Talk", roles: tuple[str, ...], turns: tuple[Names, ...], end: str) -> ResultFrame:
        past = [*map(talk.said, roles), *(one for names in turns[:-1] for one in talk.turn(names))]
        last = talk.last
        turn, *results = talk.turn(turns[-1])
        expected = [str(number) for number in range(talk.last - len(results) + 1, talk.last + 1)]
        anchor = talk.last - len(results)
        before, done, full = (
            templated(self.tokenizer, messages, self.tools, answers=answers)
            for messages, answers in (([*past], True), ([*past, turn], False), ([*past, turn, *results], True))
        )
        kept = before[: _after(before, last)]
        if not full.startswith(kept):
            at = next((at for at, (a, b) in enumerate(zip(full, kept, strict=False)) if a != b), len(full))
            raise DataError(f"the chat template changes earlier messages, from {kept[at : at + 40]!r} on")
        done, full = done[_after(done, anchor) :], full[_after(full, anchor) :]
        first, *pieces = _MARK.split(full)
        if pieces[::3] != expected:
            raise DataError("the chat template drops or moves what a tool returns")
        texts = [first[self._joint(done, first, end) :], *pieces[2::3]]
        closers = self._special.findall(done) or self._special.findall(texts[0])[:1] or [""]
        quoted = tuple(line != "\n" for line in pieces[1::3])
        return ResultFrame(tuple(texts[:-1]), quoted, texts[-1], closers[-1])

    def _joint(self, done: str, frame: str, end: str) -> int:
        """Where the frame goes on after what was sampled. `done` closes a turn that nothing follows, and `frame` one
        that results follow; both begin inside the turn."""
        if end and (at := frame.find(end)) >= 0:
            return at + len(end)
        closers = list(self._special.finditer(done))
        body = done[: closers[-1].start()] if closers else done.rstrip()
        if not frame.startswith(body):
            raise DataError("the chat template writes a turn otherwise when a result follows")
        closer = self._special.search(frame, len(body)) if closers else None
        if closer is None:
            return len(body)
        return closer.end() if end else closer.start()


@dataclass
class _Talk:
    """Messages with numbered placeholders for contents, in a form that a template takes."""

    as_text: bool
    single: bool
    numbers: "count[int]" = field(default_factory=count)
    last: int = -1
    """The number of the latest placeholder."""

    def said(self, role: str) -> JsonObject:
        return {"role": role, "content": self._mark()}

    def turn(self, names: Names) -> list[JsonObject]:
        """A turn of the assistant, without its reasoning, and what answers it."""
        if not names:
            return [self.said("assistant"), self.said("user")]
        idents = [f"call{number:05d}" for number in range(len(names))]  # nine letters and digits, as Mistral wants
        called = list(zip(idents, names, strict=True))
        calls = [self._call(ident, name) for ident, name in (called[:1] if self.single else called)]
        results: list[JsonObject] = [
            {**self.said("tool"), "name": name, "tool_call_id": ident} for ident, name in called
        ]
        return [{"role": "assistant", "content": "", "tool_calls": [*calls]}, *results]

    def _call(self, ident: str, name: str) -> JsonObject:
        given: JsonObject = {"query": self._mark()}
        arguments = json.dumps(given, ensure_ascii=False) if self.as_text else given
        return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _mark(self) -> str:
        self.last = next(self.numbers)
        return f"\ue000{self.last}\n\ue001"


def _after(text: str, number: int) -> int:
    """The position after a placeholder. Raises `DataError` where the template dropped it."""
    ends = [mark.end() for mark in _MARK.finditer(text) if int(mark[1]) == number]
    if not ends:
        raise DataError("the chat template drops what a message says")
    return ends[-1]
