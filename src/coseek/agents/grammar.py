"""Grammar: which tags there are, who writes them, and what may follow what. Written once.

Stop strings, parsing, validity (the *format* of the papers), extraction and display all come from this one object.
It sees text author by author, so a tag inside a retrieved passage is only text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from coseek.agents.actions import QueryFormat, parse_flag, parse_numbers, parse_queries, parse_tool_call
from coseek.agents.tools.search import SearchSettings, arguments_for
from coseek.agents.tools.tool import ParsedAction, Tool, ToolCall, open_tool
from coseek.core.errors import DataError
from coseek.data.trajectory import PAGE, PROMPT, RETRY, TOOL, Author, Segment

START, END = "start", "end"
TRUE, FALSE = "=true", "=false"
"""Behind the name of a flag in an order: what may follow it depends on what it says."""
_PAIRS = {"{": "}", "[": "]", "(": ")"}
_HARMLESS = {"<": "‹", "[": "［", "{": "｛", "(": "（", "\\": "＼"}
_PLAIN_MARK = re.compile(r"</?(\w[\w-]*)>")
LONGEST_MARK = 64
"""Characters of a mark. Looking for marks takes time in proportion to text times mark."""


class Action(StrEnum):
    """What the environment does when the agent closes a tag."""

    NONE = "none"
    SEARCH = "search"
    ANSWER = "answer"
    TOOL = "tool"
    """Carry out a call of one of the protocol's tools."""
    SELECT = "select"
    """Keep only these documents of the latest block."""
    COMPLETE = "complete"
    """A flag: true ends the run."""


_ASKING = (Action.SEARCH, Action.ANSWER, Action.TOOL)


@dataclass(frozen=True, slots=True)
class Tag:
    """`<name>…</name>`, or other marks: who writes it and what closing it sets off."""

    name: str
    author: Author
    action: Action = Action.NONE
    opening: str = ""
    closing: str = ""
    query_format: QueryFormat = QueryFormat.TEXT
    item: str = "query"
    """The inner tag, or the JSON key, that holds a query."""
    max_items: int | None = None
    """Queries in one search, or documents in one selection."""
    stop: tuple[str, ...] | None = None
    """What the sampler halts on: the closing, where the tag asks for something and nothing else is said."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "opening", self.opening or f"<{self.name}>")
        put(self, "closing", self.closing or f"</{self.name}>")
        if self.stop is None:
            put(self, "stop", (self.closing,) if self.action in _ASKING else ())
        if len(self.closing) == 1 and not self.is_bracket:
            raise DataError(f"the tag {self.name!r} closes with {self.closing!r}, which plain text may hold")
        if any(len(mark) > LONGEST_MARK for mark in (*self.marks, *self.inner_marks)):
            raise DataError(f"a mark of the tag {self.name!r} is longer than {LONGEST_MARK} characters; shorten it")

    @property
    def is_bracket(self) -> bool:
        r"""Closes with the bracket that ends its opening (`\boxed{…}`), so what it holds is balanced."""
        return _PAIRS.get(self.opening[-1]) == self.closing

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening,) if self.is_bracket else (self.opening, self.closing)

    @property
    def inner_marks(self) -> tuple[str, ...]:
        return (f"<{self.item}>", f"</{self.item}>") if self.query_format is QueryFormat.ITEMS else ()


@dataclass(frozen=True, slots=True)
class Span:
    """A tag with its text, or a stretch that is no such thing: then `problem` says what is wrong with it.

    Text outside of the tags has no tag, and no problem where the protocol allows it.
    """

    author: Author
    tag: str
    text: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """What a turn asks for: of its actions the first that the sampler halts on, else the last one."""

    action: Action = Action.NONE
    span: Span | None = None
    call: ToolCall | None = None
    """What is to be carried out: a tool call, or the search of a tag with `action: search`."""
    selected: tuple[int, ...] | None = None
    """Numbers of documents of the latest block, from 1; `None` when the turn selects nothing."""
    problem: str = ""
    """Why an action cannot be carried out, or is not of the form."""


@dataclass(frozen=True)
class Grammar:
    """Tags and the order they come in; `order` maps `start` and every tag to what may follow (`end` closes)."""

    tags: tuple[Tag, ...]
    order: Mapping[str, frozenset[str]]
    tools: Mapping[str, Tool] = field(default_factory=dict)
    free_text: bool = False
    """Text outside of the tags is part of the form (reasoning that has no tag of its own)."""

    def __post_init__(self) -> None:
        names = {tag.name for tag in self.tags}
        for name, followers in self.order.items():
            for odd in ({name.removesuffix(TRUE).removesuffix(FALSE), *followers} - names) - {START, END}:
                known = ", ".join(sorted(names))
                raise DataError(f"the order of this protocol names {odd!r}, which is none of its tags: {known}")
        marks = [mark for tag in self.tags for mark in tag.marks]
        for mark in marks:
            if marks.count(mark) > 1:
                raise DataError(f"two tags of this protocol are written {mark!r}; a reader could not tell them apart")
        for reserved in names & {PROMPT, RETRY, PAGE, TOOL, START, END}:
            raise DataError(f"a tag of this protocol is called {reserved!r}, a name with a meaning of its own")

    @cached_property
    def by_name(self) -> dict[str, Tag]:
        return {tag.name: tag for tag in self.tags}

    @property
    def observation(self) -> str:
        """The tag that the environment's answers to searches carry."""
        return next((tag.name for tag in self.tags if tag.author is Author.ENVIRONMENT), "observation")

    @cached_property
    def search(self) -> Tool:
        """The protocol's search tool; one with default settings where it names none."""
        ours = (tool for tool in self.tools.values() if not tool.own and isinstance(tool.settings, SearchSettings))
        tool = next(ours, None) or open_tool("search", {"tool": "search"})
        assert tool is not None
        return tool

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The strings that a sampler halts on: the closings that set something off."""
        return tuple(stop for tag in self.tags for stop in tag.stop or ())

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Every opening and closing, in order: what a tokenizer of our own makes one token each."""
        return tuple(dict.fromkeys(mark for tag in self.tags for mark in (*tag.marks, *tag.inner_marks)))

    @cached_property
    def _by_mark(self) -> dict[str, tuple[Tag, bool]]:
        """Mark → its tag, and whether it closes it."""
        return {mark: (tag, mark != tag.opening) for tag in self.tags for mark in tag.marks}

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(mark) for mark in sorted(self._by_mark, key=len, reverse=True)))

    @cached_property
    def _inner_marks(self) -> frozenset[str]:
        return frozenset(mark for tag in self.tags for mark in tag.inner_marks)

    @cached_property
    def _lookalikes(self) -> re.Pattern[str]:
        names = dict.fromkeys(found[1] for mark in self.special_tokens if (found := _PLAIN_MARK.fullmatch(mark)))
        marks = [re.escape(mark) for mark in self.special_tokens if not _PLAIN_MARK.fullmatch(mark)]
        # Possessive (`*+`), so that blanks are never given back: a passage decides how many there are.
        tag = rf"<\s*+(?:/\s*+)?(?:{'|'.join(names)})\s*+>"
        # `<|…|>` is how most tokenizers write a role or the end of a turn.
        return re.compile("|".join([tag, r"<\|[^<>|\s]{1,64}\|>", *marks]), re.I)

    def escape(self, text: str) -> str:
        """Text from outside (a passage, a question) with our tags made harmless: `<answer>` becomes `‹answer›`."""
        return self._lookalikes.sub(_harmless, text)

    def parse(self, text: str) -> list[Span]:
        """Cut what the agent wrote in one turn into spans. Total: any text parses, faults become problems."""
        spans: list[Span] = []
        opened: Tag | None = None
        ends: dict[str, dict[int, int]] = {}
        at = 0
        while mark := self._marks.search(text, at):
            between, at = text[at : mark.start()], mark.end()
            tag, closes = self._by_mark[mark[0]]
            if closes and opened is tag:
                spans.append(Span(Author.AGENT, tag.name, between))
                opened = None
                continue
            spans += self._loose(opened, between)
            opened = None if closes else tag
            if closes:
                spans.append(Span(Author.AGENT, "", "", f"{mark[0]} closes nothing"))
            elif tag.is_bracket:
                if tag.closing not in ends:
                    ends[tag.closing] = _balanced(text, tag.opening[-1], tag.closing)
                if (end := ends[tag.closing].get(at - 1)) is not None:
                    spans.append(Span(Author.AGENT, tag.name, text[at:end]))
                    opened, at = None, end + 1
        return spans + self._loose(opened, text[at:])

    def _loose(self, opened: Tag | None, text: str) -> list[Span]:
        """Text in front of a mark that does not close it."""
        if opened is not None:
            return [Span(Author.AGENT, "", text, f"{opened.opening} is not closed")]
        if text.strip():
            problem = "" if self.free_text else f"text outside the tags: {text.strip()[:40]!r}"
            return [Span(Author.AGENT, "", text, problem)]
        return []

    def spans(self, segments: Sequence[Segment]) -> list[Span]:
        """All spans of a trajectory after its prompt. What the environment wrote is one span, whatever is in it."""
        found: list[Span] = []
        for segment in segments:
            if segment.author is Author.AGENT:
                found += self.parse(segment.text)
            elif segment.tag == RETRY:
                found.append(Span(Author.ENVIRONMENT, "", segment.text, "a turn asked for nothing and was tried again"))
            elif segment.tag in (PAGE, TOOL) or segment.tag in self.by_name:
                tag = self.observation if segment.tag in (PAGE, TOOL) else segment.tag
                found.append(Span(Author.ENVIRONMENT, tag, segment.text))
        return found

    def format_error(self, spans: Sequence[Span]) -> str:
        """Why these spans are not the protocol's valid form; empty when they are (paper 002, appendix C)."""
        state = START
        for span in spans:
            if span.problem:
                return span.problem
            if not span.tag:
                continue
            tag = self.by_name[span.tag]
            if tag.author is not span.author:
                return f"<{span.tag}> is written by the {tag.author}, and the {span.author} wrote it"
            if span.tag not in self.order.get(state, ()):
                return f"{state} is followed by {span.tag}"
            if span.author is Author.AGENT and (problem := self._misread(tag, span.text)):
                return problem
            state = span.tag
            if tag.action is Action.COMPLETE:
                state += TRUE if parse_flag(span.text) else FALSE
        return "" if END in self.order.get(state, ()) else f"the run ends after {state}"

    def _misread(self, tag: Tag, text: str) -> str:
        """What is wrong with the text inside one of the agent's tags."""
        if tag.action is Action.SELECT:
            numbers = parse_numbers(text)
            if numbers is None:
                return f"{tag.opening} is no list of numbers: {text.strip()[:40]!r}"
            few = tag.max_items is None or len(numbers) <= tag.max_items
            return "" if few else f"{len(numbers)} documents in {tag.opening}, and at most {tag.max_items} are allowed"
        if tag.action is Action.COMPLETE:
            return f"{tag.opening} says neither True nor False" if parse_flag(text) is None else ""
        if tag.query_format is not QueryFormat.ITEMS and (
            mark := next((mark for mark in self._inner_marks if mark in text), "")
        ):
            return f"{mark} inside {tag.opening}"
        return self.parse_action(tag, text).problem

    def parse_action(self, tag: Tag, text: str) -> ParsedAction:
        """What the text of a tag asks for; nothing, where the tag asks for nothing."""
        if tag.action is Action.TOOL:
            return parse_tool_call(text, self.tools)
        if tag.action is Action.SEARCH:
            parsed = parse_queries(text, tag.query_format, tag.item, tag.max_items)
            call = ToolCall(self.search, arguments_for(parsed.queries)) if parsed.queries else None
            return ParsedAction(call, parsed.problem)
        return ParsedAction()

    def intent(self, text: str) -> Intent:
        """What one turn asks for. The sampler halts on the closing of an action, so at most the rest of the token
        that completed it comes after; of actions that it does not halt on, the last one written is meant."""
        selected: tuple[int, ...] | None = None
        meant: Span | None = None
        for span, tag in self._asking(text):
            if tag.action is Action.SELECT:
                numbers = parse_numbers(span.text)
                selected = selected if numbers is None else numbers[: tag.max_items]
            elif tag.action is not Action.COMPLETE:
                meant = span
                if tag.stop:
                    break
            elif parse_flag(span.text):
                meant = span
                break
        if meant is None:
            return Intent(selected=selected)
        tag = self.by_name[meant.tag]
        reading = self.parse_action(tag, meant.text)
        return Intent(tag.action, meant, reading.call, selected, reading.problem)

    def _asking(self, text: str) -> Iterator[tuple[Span, Tag]]:
        """The whole tags of a turn that have an action."""
        for span in self.parse(text):
            if self.action_of(span) is not Action.NONE:
                yield span, self.by_name[span.tag]

    def lost_stop(self, text: str) -> str:
        """The stop string that ended a turn of which a server left it off: that of the tag which is still open."""
        for tag in self.tags:
            if tag.stop and tag.opening in text and self.parse(text + tag.closing)[-1].tag == tag.name:
                return tag.stop[0]
        return ""

    def action_of(self, span: Span) -> Action:
        """What a span of the agent's sets off."""
        return Action.NONE if span.problem or not span.tag else self.by_name[span.tag].action


def _harmless(mark: re.Match[str]) -> str:
    text = mark[0]
    text = _HARMLESS.get(text[0], "·") + text[1:]
    return text[:-1] + "›" if text[-1] == ">" else text


def _balanced(text: str, opening: str, closing: str) -> dict[int, int]:
    """Where each bracket of a text is closed, by where it is opened; one that stays open is not in there."""
    ends: dict[int, int] = {}
    still_open: list[int] = []
    for place, letter in enumerate(text):
        if letter == opening:
            still_open.append(place)
        elif letter == closing and still_open:
            ends[still_open.pop()] = place
    return ends
