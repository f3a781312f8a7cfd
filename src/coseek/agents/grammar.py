"""Grammar: which tags there are, who writes them, and what may follow what. Written once.

Stop strings, parsing, validity (the *format* of the papers), extraction and display all come from this one object.
It sees text author by author, so a tag inside a retrieved passage is only text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from coseek.data.errors import DataError
from coseek.data.trajectory import Author, Segment

START, END = "start", "end"


class Action(StrEnum):
    """What the environment does when the agent closes a tag."""

    NONE = "none"
    SEARCH = "search"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Tag:
    """`<name>…</name>`: who writes it and what closing it sets off."""

    name: str
    author: Author
    action: Action = Action.NONE

    @property
    def opening(self) -> str:
        return f"<{self.name}>"

    @property
    def closing(self) -> str:
        return f"</{self.name}>"


@dataclass(frozen=True, slots=True)
class Span:
    """A tag with its text, or a stretch that is no such thing: then `problem` says what is wrong with it."""

    author: Author
    tag: str
    text: str
    problem: str = ""


@dataclass(frozen=True)
class Grammar:
    """Tags and the order they come in; `order` maps `start` and every tag to what may follow (`end` closes)."""

    tags: tuple[Tag, ...]
    order: Mapping[str, frozenset[str]]

    def __post_init__(self) -> None:
        names = {tag.name for tag in self.tags}
        for name, followers in self.order.items():
            for odd in ({name, *followers} - names) - {START, END}:
                known = ", ".join(sorted(names))
                raise DataError(f"the order of this protocol names {odd!r}, which is none of its tags: {known}")

    @cached_property
    def by_name(self) -> dict[str, Tag]:
        return {tag.name: tag for tag in self.tags}

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The strings that a sampler halts on: the closings that set something off."""
        return tuple(tag.closing for tag in self.tags if tag.action is not Action.NONE)

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Every opening and closing, in order: what a tokenizer of our own makes one token each."""
        return tuple(mark for tag in self.tags for mark in (tag.opening, tag.closing))

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        return re.compile(f"<(/?)({'|'.join(re.escape(tag.name) for tag in self.tags)})>")

    @cached_property
    def _lookalikes(self) -> re.Pattern[str]:
        names = "|".join(re.escape(tag.name) for tag in self.tags)
        return re.compile(rf"<(\s*/?\s*(?:{names})\s*)>", re.IGNORECASE)

    def disarm(self, text: str) -> str:
        """Text from outside (a passage, a question) with our tags made harmless: `<answer>` becomes `‹answer›`."""
        return self._lookalikes.sub(r"‹\1›", text)

    def parse(self, text: str) -> list[Span]:
        """Cut what the agent wrote in one turn into spans. Total: any text parses, faults become problems."""
        spans: list[Span] = []
        opened: str | None = None
        at = 0
        for mark in self._marks.finditer(text):
            between, at, name = text[at : mark.start()], mark.end(), mark[2]
            if mark[1] and opened == name:
                spans.append(Span(Author.AGENT, name, between))
                opened = None
                continue
            spans += self._loose(opened, between)
            opened = None if mark[1] else name
            if mark[1]:
                spans.append(Span(Author.AGENT, "", "", f"</{name}> closes nothing"))
        return spans + self._loose(opened, text[at:])

    def _loose(self, opened: str | None, text: str) -> list[Span]:
        """Text in front of a mark that does not close it."""
        if opened is not None:
            return [Span(Author.AGENT, "", text, f"<{opened}> is not closed")]
        if text.strip():
            return [Span(Author.AGENT, "", text, f"text outside the tags: {text.strip()[:40]!r}")]
        return []

    def spans(self, segments: Sequence[Segment]) -> list[Span]:
        """All spans of a trajectory after its prompt. What the environment wrote is one span, whatever is in it."""
        found: list[Span] = []
        for segment in segments:
            if segment.author is Author.AGENT:
                found += self.parse(segment.text)
            elif segment.tag in self.by_name:
                found.append(Span(Author.ENVIRONMENT, segment.tag, segment.text))
        return found

    def complaint(self, spans: Sequence[Span]) -> str:
        """Why these spans are not the protocol's valid form; empty when they are (paper 002, appendix C)."""
        state = START
        for span in spans:
            if span.problem:
                return span.problem
            if self.by_name[span.tag].author is not span.author:
                return f"<{span.tag}> is written by the {self.by_name[span.tag].author}, and the {span.author} wrote it"
            if span.tag not in self.order.get(state, ()):
                return f"{state} is followed by {span.tag}"
            state = span.tag
        return "" if END in self.order.get(state, ()) else f"the run ends after {state}"

    def action(self, text: str) -> tuple[Action, Span | None]:
        """What a turn asks for: its first whole `<tag>…</tag>` that sets something off.

        The sampler halts on that closing, so at most the rest of the token that completed it comes after.
        """
        for span in self.parse(text):
            if self.action_of(span) is not Action.NONE:
                return self.action_of(span), span
        return Action.NONE, None

    def action_of(self, span: Span) -> Action:
        """What a span of the agent's sets off."""
        return Action.NONE if span.problem else self.by_name[span.tag].action
