"""Grammar: the tags of a protocol, who writes them, and the order in which they may follow each other.

Stop strings, parsing, validity (the *format* of the papers) and extraction all derive from this object. Segments are
parsed by author, so a tag inside a retrieved passage is plain text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from coseek.agents.tag import (
    Action,
    QueryFormat,
    Tag,
    numbers_in,
    parse_flag,
    parse_numbers,
    parse_queries,
    parse_tool_call,
    says_one_of,
)
from coseek.agents.tool import ParsedAction, Tool, ToolCall, open_tool
from coseek.agents.tools.search import SearchSettings, arguments_for
from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.prompt_file import ROLE_MARK, harmless
from coseek.data.trajectory import COMMON_TAGS, LAST_WORD, MISSING, PAGE, RETRY, TOOL, Author, Segment
from coseek.models.written import (
    MARK_IN_DATA,
    ToolCallText,
    begun_reasoning,
    calls_in,
    closing_of,
    opened_at_end,
    opens_reasoning,
    read_turn,
    reasoning_in,
    split_opened,
    without_answer_mark,
)

START, END = "start", "end"
TRUE, FALSE = "=true", "=false"
"""Suffixes of a flag's name in an order: what may follow the flag depends on its value."""
_PLAIN_MARK = re.compile(r"</?(\w[\w-]*)>")


@dataclass(frozen=True, slots=True)
class Span:
    """A tag with its text, or text outside the tags (`tag` is empty). `problem` says why the form is invalid."""

    author: Author
    tag: str
    text: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """The action of a turn: the first with a stop string, else the last; with native calls all of them."""

    action: Action = Action.NONE
    span: Span | None = None
    calls: tuple[ParsedAction, ...] = ()
    """The calls to carry out, in order. A tag with `action: search` calls the search tool."""
    selected: tuple[int, ...] | None = None
    """Numbers of documents of the latest block, from 1; `None` when the turn makes no selection."""

    @property
    def call(self) -> ToolCall | None:
        """The first call that can be carried out."""
        return next((parsed.call for parsed in self.calls if parsed.call is not None), None)

    @property
    def problem(self) -> str:
        """Why the action cannot be carried out or has an invalid form; "" without a problem."""
        return next((parsed.problem for parsed in self.calls if parsed.problem), "")


@dataclass(frozen=True)
class Grammar:
    """Tags and their order: `order` maps `start` and every tag to the tags that may follow; `end` ends the run."""

    tags: tuple[Tag, ...]
    order: Mapping[str, frozenset[str]]
    tools: Mapping[str, Tool] = field(default_factory=dict)
    free_text: bool = False
    """Text outside the tags is valid: reasoning without a tag."""
    native_calls: bool = False
    """The agent writes its turns in the form of its chat template: `think` holds the reasoning, `tool_call` each call,
    and `answer` the text of a turn without calls."""

    def __post_init__(self) -> None:
        names = {tag.name for tag in self.tags}
        for name, followers in self.order.items():
            for unknown in ({name.removesuffix(TRUE).removesuffix(FALSE), *followers} - names) - {START, END}:
                known = ", ".join(sorted(names))
                raise DataError(f"the order of this protocol names {unknown!r}, which is not one of its tags: {known}")
        marks = [mark for tag in self.tags for mark in tag.marks]
        for mark in marks:
            if marks.count(mark) > 1:
                raise DataError(f"two tags of this protocol are written {mark!r}; a reader could not tell them apart")
        for reserved_name in names & {*COMMON_TAGS, START, END}:
            raise DataError(f"a tag of this protocol is called {reserved_name!r}, a name with a meaning of its own")

    @cached_property
    def by_name(self) -> dict[str, Tag]:
        return {tag.name: tag for tag in self.tags}

    @cached_property
    def agent_tags(self) -> dict[Action, Tag]:
        """The agent's first tag with each action."""
        return {tag.action: tag for tag in reversed(self.tags) if tag.author is Author.AGENT}

    @property
    def observation(self) -> str:
        """Tag of the environment segments that show search results: the first tag the environment writes."""
        return next((tag.name for tag in self.tags if tag.author is Author.ENVIRONMENT), "observation")

    @cached_property
    def search(self) -> Tool:
        """The protocol's search tool, or one with default settings when it names none."""
        tools = (tool for tool in self.tools.values() if not tool.own and isinstance(tool.settings, SearchSettings))
        tool = next(tools, None) or open_tool("search", {"tool": "search"})
        assert tool is not None
        return tool

    @cached_property
    def schemas(self) -> tuple[JsonObject, ...]:
        """The tools' schemas for a chat template or a server."""
        return tuple(tool.schema for tool in self.tools.values())

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """All stop strings, for the sampler: closing marks first."""
        return (*self.closing_stops, *(stop for tag in self.tags for stop in tag.stops if stop != tag.closing))

    @property
    def closing_stops(self) -> tuple[str, ...]:
        """Stop strings that a server may cut off; `lost_stop` restores them."""
        return tuple(stop for tag in self.tags for stop in tag.stops if stop == tag.closing)

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """All opening and closing marks, in order; each is one token of the tokenizers trained here."""
        return tuple(dict.fromkeys(mark for tag in self.tags for mark in (*tag.marks, *tag.inner_marks)))

    @cached_property
    def _tag_by_mark(self) -> dict[str, tuple[Tag, bool]]:
        """Mark → its tag, and whether the mark is the closing one."""
        return {mark: (tag, mark != tag.opening) for tag in self.tags for mark in tag.marks}

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(mark) for mark in sorted(self._tag_by_mark, key=len, reverse=True)))

    @cached_property
    def _lookalikes(self) -> re.Pattern[str]:
        names = dict.fromkeys(match[1] for mark in self.special_tokens if (match := _PLAIN_MARK.fullmatch(mark)))
        marks = [re.escape(mark) for mark in self.special_tokens if not _PLAIN_MARK.fullmatch(mark)]
        # Possessive (`*+`) to prevent backtracking: a passage may hold any number of blanks.
        tag = rf"<\s*+(?:/\s*+)?(?:{'|'.join(names)})\s*+>"
        return re.compile("|".join([tag, ROLE_MARK, MARK_IN_DATA, *marks]), re.I)

    def escape(self, text: str) -> str:
        """Neutralise the protocol's marks, role marks and reasoning marks in text from outside: `<answer>` becomes
        `‹answer›`."""
        return self._lookalikes.sub(harmless, text)

    def cut_at_marks(self, text: str) -> list[str]:
        """Split a text before and after every mark; the pieces joined are the text."""
        marks = sorted(self.special_tokens, key=len, reverse=True)
        return re.split(f"({'|'.join(map(re.escape, marks))})", text)

    @cached_property
    def _inert_tags(self) -> dict[str, Tag]:
        """The agent's tags without an action, by their opening marks."""
        inert_tags = (tag for tag in self.tags if tag.author is Author.AGENT and tag.action is Action.NONE)
        return {tag.opening: tag for tag in inert_tags if not tag.is_bracket}

    @cached_property
    def thought(self) -> Tag | None:
        """The agent's tag for its reasoning."""
        return next((tag for mark, tag in self._inert_tags.items() if opens_reasoning(mark)), None)

    def opened_mark(self, before: str) -> str:
        """The mark with which a text of the environment ends: the opening mark of one of the agent's tags without an
        action, or a mark that opens reasoning, as in chat templates of reasoning models. "" without a mark. Text from
        outside is escaped, so it cannot end with a mark."""
        end = before.rstrip()
        return next((mark for mark in self._inert_tags if end.endswith(mark)), "") or opened_at_end(before)

    def parse(self, text: str, opened: str = "") -> list[Span]:
        """Split one turn of the agent into spans. Any text parses; mistakes become problems. `opened` is a mark that
        the prompt has already opened; the agent may repeat it.

        Reasoning at the beginning of a turn in a model's own marks is a span of the tag `thought`. If there is no such
        tag, or this tag follows, it is text without a problem. In free text the marks have no meaning.
        """
        if self.native_calls:
            return self.spans_of(read_turn(text, tools=self.schemas))
        if opened in self._inert_tags or self.free_text:
            return self._tagged_spans(text, self._inert_tags.get(opened))
        reasoning, text = self._split_own_reasoning(text, opened)
        spans = self._tagged_spans(without_answer_mark(text))
        if reasoning is not None and spans and spans[0].tag == reasoning.tag:
            reasoning = replace(reasoning, tag="")
        return [reasoning, *spans] if reasoning is not None else spans

    def _split_own_reasoning(self, text: str, mark: str) -> tuple[Span | None, str]:
        """The reasoning at the beginning of a turn, in the marks of its model, and the text after it."""
        begun_mark, rest = begun_reasoning(text)
        if begun_mark and begun_mark not in self._tag_by_mark:
            mark, text = mark or begun_mark, rest
        if not mark:
            return None, text
        if self.thought and begun_mark == self.thought.opening and closing_of(mark) not in text:
            return None, text  # the template opened its mark, and the agent writes the protocol's
        parts = split_opened(text, mark)
        if parts is None:
            return Span(Author.AGENT, "", "", f"{mark} is not closed"), text
        return Span(Author.AGENT, self.thought.name if self.thought else "", parts[0]), parts[1]

    def _tagged_spans(self, text: str, open_tag: Tag | None = None) -> list[Span]:
        """The spans of a turn in the protocol's own marks."""
        spans: list[Span] = []
        if open_tag is not None and text.lstrip().startswith(open_tag.opening):
            open_tag = None
        ends: dict[str, dict[int, int]] = {}
        position = 0
        while mark := self._marks.search(text, position):
            text_between, position = text[position : mark.start()], mark.end()
            tag, closes = self._tag_by_mark[mark[0]]
            if closes and open_tag is tag:
                spans.append(Span(Author.AGENT, tag.name, text_between))
                open_tag = None
                continue
            spans += self._loose(open_tag, text_between)
            open_tag = None if closes else tag
            if closes:
                spans.append(Span(Author.AGENT, "", "", f"{mark[0]} closes nothing"))
            elif tag.is_bracket:
                if tag.closing not in ends:
                    ends[tag.closing] = _bracket_pairs(text, tag.opening[-1], tag.closing)
                if (end := ends[tag.closing].get(position - 1)) is not None:
                    spans.append(Span(Author.AGENT, tag.name, text[position:end]))
                    open_tag, position = None, end + 1
        return spans + self._loose(open_tag, text[position:])

    def read(self, segment: Segment) -> list[Span]:
        """The spans of a segment of the agent: of its message if it has one, else of its text."""
        return self.parse(segment.text) if segment.message is None else self.spans_of(segment.message)

    def spans_of(self, message: JsonObject) -> list[Span]:
        """The spans of an assistant's message: its reasoning, then its calls or its answer."""
        reasoning, content, calls = reasoning_in(message), str(message.get("content") or ""), calls_in(message)
        think, call, answer = (self.agent_tags[action] for action in (Action.NONE, Action.TOOL, Action.ANSWER))
        spans = [Span(Author.AGENT, think.name, reasoning)] if reasoning else []
        if not calls:  # the text may mark the answer, as in other protocols
            before, marked, after = content.rpartition(answer.opening)
            content, reply = (before, after.partition(answer.closing)[0]) if marked else ("", content)
            return [*spans, *self._loose(None, content), *([Span(Author.AGENT, answer.name, reply)] if reply else [])]
        return [*spans, *self._loose(None, content), *(Span(Author.AGENT, call.name, as_json(item)) for item in calls)]

    def spell(self, message: JsonObject) -> str:
        """Write an assistant's message in the marks of this grammar. Text beside calls is neither a call nor an
        answer."""
        reasoning, content, calls = reasoning_in(message), str(message.get("content") or ""), calls_in(message)
        think, call = self.agent_tags[Action.NONE], self.agent_tags[Action.TOOL]
        thought = f"{think.opening}{self.escape(reasoning)}{think.closing}\n" if reasoning else ""
        call_texts = (f"{call.opening}{self.escape(as_json(item))}{call.closing}" for item in calls)
        return thought + (self.escape(content) if calls else content) + "".join(call_texts)

    def _loose(self, open_tag: Tag | None, text: str) -> list[Span]:
        """The spans of text that no closing mark ends."""
        if open_tag is not None:
            return [Span(Author.AGENT, "", text, f"{open_tag.opening} is not closed")]
        if text.strip():
            problem = "" if self.free_text else f"text outside the tags: {text.strip()[:40]!r}"
            return [Span(Author.AGENT, "", text, problem)]
        return []

    def spans(self, segments: Sequence[Segment]) -> list[Span]:
        """All spans of a trajectory after its prompt. Each environment segment is one span, whatever it contains."""
        spans: list[Span] = []
        previous_text = ""
        for segment in segments:
            if segment.author is Author.AGENT:
                open_mark = self.opened_mark(previous_text)
                spans += self.read(segment) if self.native_calls else self.parse(segment.text, open_mark)
                previous_text = ""
                continue
            previous_text = segment.text
            if segment.tag == RETRY:
                spans.append(Span(Author.ENVIRONMENT, "", segment.text, "a turn asked for nothing and was tried again"))
            elif segment.tag in (PAGE, MISSING, TOOL, LAST_WORD) or segment.tag in self.by_name:
                tag = segment.tag if segment.tag in self.by_name else self.observation
                spans.append(Span(Author.ENVIRONMENT, tag, segment.text))
        return spans

    def format_error(self, spans: Sequence[Span]) -> str:
        """Why these spans do not have the protocol's valid form, or "" (Search-R1 empirical study, appendix C)."""
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
            if span.author is Author.AGENT and (problem := self._problem_inside(tag, span.text)):
                return problem
            state = span.tag
            if tag.action is Action.COMPLETE:
                state += TRUE if parse_flag(span.text, tag.true_words) else FALSE
        return "" if END in self.order.get(state, ()) else f"the run ends after {state}"

    def _problem_inside(self, tag: Tag, text: str) -> str:
        """What is wrong with the text inside a tag of the agent, or ""."""
        if tag.action is Action.SELECT:
            numbers = parse_numbers(text)
            if numbers is None:
                return f"{tag.opening} is no list of numbers: {text.strip()[:40]!r}"
            fits = tag.max_items is None or len(numbers) <= tag.max_items
            return "" if fits else f"{len(numbers)} documents in {tag.opening}, and at most {tag.max_items} are allowed"
        if tag.action is Action.COMPLETE:
            return f"{tag.opening} says neither True nor False" if parse_flag(text, tag.true_words) is None else ""
        inner_marks = (mark for other in self.tags for mark in other.inner_marks if mark in text)
        if tag.query_format is not QueryFormat.ITEMS and (mark := next(inner_marks, "")):
            return f"{mark} inside {tag.opening}"
        return self.parse_action(tag, text).problem

    def parse_action(self, tag: Tag, text: str) -> ParsedAction:
        """Parse the text of a tag with `action: tool` or `action: search`; other tags make no call."""
        if tag.action is Action.TOOL:
            return parse_tool_call(text, self.tools)
        if tag.action is Action.SEARCH:
            parsed = parse_queries(text, tag.query_format, tag.item, tag.max_items)
            call = ToolCall(self.search, arguments_for(parsed.queries)) if parsed.queries else None
            return ParsedAction(call, parsed.problem)
        return ParsedAction()

    def intent(self, text: str) -> Intent:
        """Find the action of one turn: see `intent_of`."""
        return self.intent_of(self.parse(text))

    def intent_of(self, spans: Sequence[Span]) -> Intent:
        """Find the action of one turn. The sampler stops at a stop string, so only the rest of one token can follow
        it. Among actions without a stop string the last counts; native calls all count."""
        numbers: tuple[int, ...] | None = None
        chosen_span: Span | None = None
        actions = [(span, self.by_name[span.tag]) for span in spans if self.action_of(span) is not Action.NONE]
        for span, tag in actions:
            if tag.action is Action.SELECT:
                if numbers is None or tag.of_several == "last":
                    numbers = numbers_in(span.text)[: tag.max_items]
            elif tag.action is not Action.COMPLETE or parse_flag(span.text, tag.true_words):
                chosen_span = span
                if tag.stops or tag.action is Action.COMPLETE:
                    break
        if chosen_span is None:
            return Intent(selected=numbers)
        tag = self.by_name[chosen_span.tag]
        calls = [span for span, _ in actions] if self.native_calls else [chosen_span]
        return Intent(tag.action, chosen_span, tuple(self.parse_action(tag, span.text) for span in calls), numbers)

    def is_decline(self, span: Span) -> bool:
        """Whether this span declines to answer: the whole answer is one of its tag's phrases."""
        return self.action_of(span) is Action.ANSWER and says_one_of(span.text, self.by_name[span.tag].declines)

    def lost_stop(self, text: str) -> str:
        """The stop string that a server cut off the end of a turn, which closes the tag that is still open, or ""."""
        for tag in self.tags:
            is_cut = tag.closing in tag.stops and tag.opening in text
            if is_cut and self.parse(text + tag.closing)[-1].tag == tag.name:
                return tag.closing
        return ""

    def action_of(self, span: Span) -> Action:
        """The action of a span of the agent."""
        return Action.NONE if span.problem or not span.tag else self.by_name[span.tag].action


def as_json(call: ToolCallText) -> str:
    """A call as the text inside its tag; a call that could not be parsed is returned as it was written."""
    if not call.name:
        return str(call.arguments)
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _bracket_pairs(text: str, opening: str, closing: str) -> dict[int, int]:
    """Map the position of each opening bracket to that of its closing one; brackets left open are missing."""
    ends: dict[int, int] = {}
    open_positions: list[int] = []
    for position, letter in enumerate(text):
        if letter == opening:
            open_positions.append(position)
        elif letter == closing and open_positions:
            ends[open_positions.pop()] = position
    return ends
