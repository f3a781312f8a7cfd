"""Conversation: a chat with tool calls, as logs hold it, and the trajectory that is stored for it.

A message is an object with `role`, `content` and `tool_calls` in the form of OpenAI's chat completions
(`message_forms` writes others so). The question is the user's last, and what was said before is context. The trajectory
is written in the tags of `PROTOCOL`. All text of a log is data: marks in it are neutralised before ours are put around
it, a call is one only where the log has it as a call, and the run is never exact, so nothing in it is trained on as
sampled.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coseek.agents.actions import texts_of
from coseek.agents.grammar import Span
from coseek.agents.protocol import Protocol, load_protocol
from coseek.core.files import Json, JsonObject
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import (
    MESSAGE,
    PROMPT,
    TOOL,
    Author,
    Call,
    Search,
    Segment,
    StopReason,
    Trajectory,
    Visit,
    met_passages,
    ranked,
    stop_of_decline,
)
from coseek.models.tokenizer import ByteTokenizer
from coseek.models.written import ToolCallText, reasoning_in
from coseek.traces.calls import answer_in, calls_in, finished_in, reasoning_and_words, text_of
from coseek.traces.found_passages import found_by_query, is_fault, own_hits

PROTOCOL = "tongyi"
"""The protocol whose tags imported runs are written in: reasoning, JSON tool calls, a tagged answer."""
QUERY_ARGUMENTS = ("query", "queries", "q", "search_query", "question", "keywords", "input", "text")
"""Arguments of a search tool that may hold the query, the first that is there; else its only argument."""
_SEARCHES = re.compile("search|retriev", re.I)
_OBSERVED = re.compile(
    r"\A\s*+(<(tool_response|information|observation|results?|search_results?|documents?)\b|observation\s*:)", re.I
)
"""How a user's message begins that holds what a tool returned."""
_EMPTY = "the last message is empty"
_NO_RESULT = "(the log has no result of this call)"
_REMARKS = ("user", "system", "developer")
"""Roles of messages that may follow the answer."""
_SAID = (None, StopReason.ANSWERED, StopReason.DECLINED)
"""Ends of a run whose last message may be its answer."""
_UNANSWERED = (StopReason.COMPLETE, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.INVALID)
"""Ends that a log may name for a run without an answer."""
_UNCUT = 2**31
"""Tokens to which a result is cut: it has been shown already."""


@dataclass(frozen=True, slots=True)
class SampledIds:
    """Token ids of one assistant message, where the log has them."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One an id; 0 stands for an unknown one."""
    read: tuple[int, ...] = ()
    """Context between the previous message and this one; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a log."""

    question: Question
    messages: tuple[JsonObject, ...]
    where: str = ""
    """File and line."""
    answer: str | None = None
    """The final answer, where the log has it apart; else it is the text of the last message."""
    fault: str = ""
    """Why the run failed; such a run is counted and never scored."""
    sampled: Mapping[int, SampledIds] = field(default_factory=dict)
    """By position of an assistant message."""
    stop: StopReason | None = None
    """How the run ended, where the log has it; then a last message is no answer by itself."""
    opening: tuple[Search, ...] = ()
    """What was searched before the agent's first turn, where coseek wrote the log."""
    evidence: tuple[str, ...] = ()
    """Ids of the found passages, best first, where coseek wrote the log."""
    selected_ids: tuple[str, ...] = ()
    """Ids of the passages that the agent chose over the whole run, where coseek wrote the log."""
    visits: tuple[Visit, ...] = ()
    """What visits showed, where coseek wrote the log."""
    protocol: str | None = None
    """Name of the protocol that the agent spoke, where the log has it."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """Assistant messages with nothing between them, and the messages that follow; positions in the conversation."""

    written: tuple[int, ...]
    following: tuple[int, ...]


def question_at(messages: Sequence[JsonObject], given: str | None = None) -> int | None:
    """The position of the user's message that asks: the last question that an assistant's message follows.

    A user's message after a call is what the agent read, and no question. With `given`, the message that is this
    question, else the first that contains it, else the first. `None` without a user's message with text.
    """
    said = {at: text_of(row.get("content")).strip() for at, row in enumerate(messages) if row["role"] == "user"}
    users = [at for at, text in said.items() if text]
    if given is not None:
        exact = [at for at in users if said[at] == given.strip()]
        if not exact:
            return next((at for at in users if given.strip() in said[at]), next(iter(said), None))
        users = exact
    asking = [at for at in users if _asks(messages, at)] or users
    followed = [at for at in asking if any(row["role"] == "assistant" for row in messages[at:])]
    chosen = followed or asking
    return chosen[-1] if chosen else None


def questions_before(messages: Sequence[JsonObject], at: int) -> int:
    """Number of the user's questions before the one at `at` that an assistant answered."""
    return sum(
        row["role"] == "user" and messages[place + 1]["role"] == "assistant" and _asks(messages, place)
        for place, row in enumerate(messages[:at])
    )


def _asks(messages: Sequence[JsonObject], at: int) -> bool:
    """Whether a user's message is a question: the first one, or one after a message without calls."""
    before = next((row for row in reversed(messages[:at]) if row["role"] in ("assistant", "tool", "function")), None)
    if before is None:
        return True
    observed = _OBSERVED.match(text_of(messages[at].get("content"))) is not None
    calls = calls_in(before)
    return before["role"] == "assistant" and not (calls and not finished_in(calls)) and not observed


def turns_of(messages: Sequence[JsonObject], question: str) -> tuple[int, list[ChatTurn]]:
    """The number of messages that the agent read first, and its turns. What stands before the question is read.

    Messages of the assistant with nothing between them are one turn, except final words after a call that has no
    result.
    """
    roles = [message["role"] for message in messages]
    asked = question_at(messages, question)
    begin = 0 if asked is None else asked + 1
    while begin < len(roles) and roles[begin] != "assistant":
        begin += 1
    turns: list[ChatTurn] = []
    for at in range(begin, len(roles)):
        last = turns[-1] if turns else ChatTurn((), ())
        if roles[at] != "assistant":
            turns[-1] = ChatTurn(last.written, (*last.following, at))
        elif last.following or not turns or _ends_after_call(messages, last.written[-1], at):
            turns.append(ChatTurn((at,), ()))
        else:
            turns[-1] = ChatTurn((*last.written, at), ())
    return begin, turns


def _ends_after_call(messages: Sequence[JsonObject], before: int, at: int) -> bool:
    """Whether a message holds the words after a call that has no result."""
    following = messages[at + 1]["role"] if at + 1 < len(messages) else None
    answered = following in ("tool", "function", "assistant")
    return bool(calls_in(messages[before])) and not calls_in(messages[at]) and not answered


def _is_answer(messages: Sequence[JsonObject], last: ChatTurn) -> bool:
    """Whether a turn answers, and what follows it only thanks, asks what nobody answered or is the program's."""
    calls = [call for at in last.written for call in calls_in(messages[at])]
    if finished_in(calls):
        return True
    plain = all(
        messages[at]["role"] in _REMARKS and not _OBSERVED.match(text_of(messages[at].get("content")))
        for at in last.following
    )
    return plain and not calls and any(reasoning_and_words(messages[at])[1].strip() for at in last.written)


def results_of(messages: Sequence[JsonObject], turn: ChatTurn) -> tuple[list[ToolCallText], dict[int, int]]:
    """The calls of a turn, and which following message (by position) holds the result of which call (by number).

    A result names its call by id. Those without an id, or with one that no call of the conversation has, belong to the
    calls that no result names, in order; so do all results of calls without an id.
    """
    calls = [call for at in turn.written for call in calls_in(messages[at])]
    left = dict(enumerate(calls))
    matched: dict[int, int] = {}
    results = [at for at in turn.following if messages[at]["role"] in ("tool", "function")]
    idents = {at: messages[at].get("tool_call_id") for at in results}
    own = {call.ident for call in calls}
    if any(isinstance(ident, str) and ident not in own for ident in idents.values()):
        own |= {call.ident for message in messages for call in calls_in(message)}
    idents = {at: ident if isinstance(ident, str) and ident in own else None for at, ident in idents.items()}
    for at in sorted(results, key=lambda at: idents[at] is None):  # those with an id first
        named = (n for n, call in left.items() if idents[at] is not None and call.ident == idents[at])
        number = next(named, next((n for n, call in left.items() if idents[at] is None or call.ident is None), None))
        if number is not None:
            matched[at] = number
            del left[number]
    return calls, matched


@dataclass
class ConversationReader:
    """Makes trajectories of conversations, and counts what they hold."""

    search_tools: Sequence[str] = ()
    """Names of the tools that search; by default those whose name contains `search` or `retriev`."""
    query_argument: str = ""
    """The argument that holds the query."""
    tools: Counter[str] = field(default_factory=Counter)
    """Calls with a result, by the tool's name."""
    counts: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    """What is kept as text and not understood, by name."""
    protocol: Protocol = field(default_factory=lambda: load_protocol(PROTOCOL))

    def __post_init__(self) -> None:
        self._bytes = ByteTokenizer(self.protocol.grammar.special_tokens)

    def trajectory(self, chat: Conversation, seed: int) -> Trajectory:
        """The inexact run of a conversation."""
        begin, turns = turns_of(chat.messages, chat.question.question)
        if turns and chat.stop in _SAID and _is_answer(chat.messages, turns[-1]):
            remarks = [at for at in turns[-1].following if chat.messages[at]["role"] in _REMARKS]
            self.unread.update(["messages of a user or a program after the answer"] * len(remarks))
            turns[-1] = ChatTurn(turns[-1].written, ())
        run = _Writer(self, chat)
        run.prompt(begin)
        for number, turn in enumerate(turns, start=1):
            run.turn(turn, number, is_last=number == len(turns))
        return run.finish(seed)

    def is_search(self, name: str) -> bool:
        return name in self.search_tools if self.search_tools else _SEARCHES.search(name) is not None

    def queries(self, call: ToolCallText) -> tuple[str, ...]:
        """The queries of a call; none where it is no search, its arguments are malformed, or none of them is known."""
        if not self.is_search(call.name) or call.is_malformed:
            return ()
        arguments = call.arguments
        if not isinstance(arguments, dict):
            return texts_of(arguments)
        if self.query_argument:
            return texts_of(arguments.get(self.query_argument))
        named = next((queries for key in QUERY_ARGUMENTS if (queries := texts_of(arguments.get(key)))), ())
        return named or (texts_of(next(iter(arguments.values()))) if len(arguments) == 1 else ())

    def shown(self, text: str) -> str:
        """A result as the protocol shows it."""
        return self._bytes.decode(self.protocol.template.result_ids(self._bytes, text, _UNCUT))


@dataclass
class _Writer:
    """A trajectory in the making."""

    reader: ConversationReader
    chat: Conversation
    segments: list[Segment] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    answer: str | None = None
    ending: str = "the log ends without an answer"
    told: set[int] = field(default_factory=set)
    """Numbers of the turns that another message than a tool's result follows, such as a visited page."""
    thoughts: Sequence[str] = ()
    """Those in the text of the current turn."""
    known: dict[str, Passage] = field(init=False)
    """The passages so far by id, those that coseek wrote first: what others call the same gives way to them."""

    def __post_init__(self) -> None:
        own = [Search("", own_hits(message["hits"]) or ()) for message in self.chat.messages if "hits" in message]
        self.known = met_passages((*self.chat.opening, *own), self.chat.visits)

    def prompt(self, begin: int) -> None:
        """Everything that stands before the agent's first turn."""
        read = self.chat.messages[:begin]
        self.searches = [
            replace(search, turn=0, selected=_chosen(search.selected, search.hits)) for search in self.chat.opening
        ]
        texts = [text_of(message.get("content")) for message in read]
        if len(read) > 1:
            texts = [f"{message['role']}: {text}" for message, text in zip(read, texts, strict=True)]
        text = "\n\n".join(texts) or self.chat.question.question
        sampled = self.chat.sampled.get(begin)
        self._read(PROMPT, self._escape(text), sampled.read if sampled else ())

    def turn(self, turn: ChatTurn, number: int, is_last: bool) -> None:
        """One turn of the agent, and what it was answered."""
        messages = self.chat.messages
        calls, matched = results_of(messages, turn)
        parts = [reasoning_and_words(messages[at]) for at in turn.written]
        content = "\n".join(text for _, text in parts if text.strip())
        self.thoughts = [thought for thought, _ in parts if thought]
        if is_last and not turn.following:
            said, finished = self.chat.answer or "", finished_in(calls) if self.chat.stop in _SAID else ""
            calls = [] if finished else calls
            if not (said or self.chat.stop or calls):
                said = answer_in(finished or content)
            self.answer = None if calls else said.strip() or None
            unsaid = "" if content or finished else _EMPTY
            self.ending = "the log ends with a call that has no result" if calls else unsaid
        self._wrote(turn, calls, content)
        self._found(turn, calls, matched, number)
        if calls and not turn.following and not is_last:
            self._read(MESSAGE, _NO_RESULT, ())
        self.reader.counts["calls_without_result"] += len(calls) - len(matched)
        for call in calls:
            if call.is_malformed:
                self.reader.unread["calls with arguments that are not JSON, which are no queries"] += 1
            elif self.reader.is_search(call.name) and not self.reader.queries(call):
                self.reader.unread["searches without a query that can be read (query_argument=NAME)"] += 1

    def finish(self, seed: int) -> Trajectory:
        chat = self.chat
        if chat.answer is not None and self.segments[-1].author is Author.ENVIRONMENT:
            self.segments.append(Segment(Author.AGENT, "answer", self._answered(chat.answer), ()))
        self.answer = chat.answer or self.answer
        grammar = self.reader.protocol.grammar
        if chat.fault:
            stop, detail, self.answer = StopReason.MODEL_ERROR, chat.fault, None
        elif self.answer is not None and self._is_decline(self.answer):
            (stop, detail), self.answer = stop_of_decline(self.searches), None
        elif self.answer is not None:
            stop, detail = StopReason.ANSWERED, ""
        else:
            stop, detail = self._unanswered(), self.ending
            self.reader.counts["without_answer"] += 1
        format_error = grammar.format_error(grammar.spans(self.segments))
        met, visits = met_passages(self.searches, ()), self._visits()
        chosen = [*chat.selected_ids, *(ident for search in self.searches for ident in search.selected or ())]
        selected = tuple(dict.fromkeys(ident for ident in chosen if ident in met))
        return Trajectory(
            question=chat.question,
            protocol=self.reader.protocol.name,
            segments=tuple(self.segments),
            searches=tuple(self.searches),
            stop=stop,
            answer=self.answer,
            valid=not format_error,
            format_error=format_error,
            stop_detail=detail,
            seed=seed,
            exact=False,
            calls=tuple(self.calls),
            selected_ids=selected,
            evidence=ranked(self.searches, chat.evidence or selected, visits),
            visits=visits,
            messages=chat.messages,
            logged_protocol=None if chat.protocol == self.reader.protocol.name else chat.protocol,
        )

    def _visits(self) -> tuple[Visit, ...]:
        """The visits of the log that can have been, one a turn: each showed what it asked for, in a message."""
        found = {visit.turn: visit for visit in self.chat.visits if visit.turn in self.told and visit.shows(visit.id)}
        return tuple(found[turn] for turn in sorted(found))

    def _is_decline(self, answer: str) -> bool:
        """Whether an answer declines. A log that calls it an answer is believed: its agent may have no such words."""
        said = Span(Author.AGENT, "answer", answer)
        return self.chat.stop is not StopReason.ANSWERED and self.reader.protocol.grammar.is_decline(said)

    def _unanswered(self) -> StopReason:
        """How a run without an answer ended: as the log says, else as its last message shows."""
        stop = self.chat.stop
        shown_last = self.segments[-1].author is Author.ENVIRONMENT
        if stop in _UNANSWERED and not (stop is StopReason.COMPLETE and shown_last):  # only the agent completes a run
            return stop
        return StopReason.INVALID if self.ending == _EMPTY else StopReason.TURN_LIMIT

    # --- parts of a turn

    def _wrote(self, turn: ChatTurn, calls: Sequence[ToolCallText], content: str) -> None:
        """The agent's segment: reasoning, content, and calls or an answer in the protocol's tags."""
        reasoned = (reasoning_in(self.chat.messages[at]) for at in turn.written)
        reasoning = "\n".join(filter(None, (*reasoned, *self.thoughts))).strip()
        pieces, tag = [self._escape(reasoning)], ""
        if self.answer != content.strip():
            pieces.append(self._escape(content))
        pieces += [self._called(call) for call in calls]
        if calls:
            tag = "tool_call"
        elif self.answer is not None:
            pieces.append(self._answered(self.answer))
            tag = "answer"
        text = "\n".join(piece for piece in pieces if piece)
        sampled = self.chat.sampled.get(turn.written[0]) if len(turn.written) == 1 else None
        ledger = (sampled.ids, sampled.logprobs) if sampled else ((), ())
        self.segments.append(Segment(Author.AGENT, tag, text, *ledger))

    def _found(self, turn: ChatTurn, calls: Sequence[ToolCallText], matched: Mapping[int, int], number: int) -> None:
        """Searches and calls with their results, in one block of the searches and a segment for each other message."""
        messages, blocks = self.chat.messages, list[tuple[str, str]]()
        searched: list[str] = []
        unshown = True  # what coseek found after the last turn has hits and no text
        results = {number: at for at, number in matched.items()}
        faults = dict[int, str]()
        for place, call in enumerate(calls):
            if place in results and (queries := self.reader.queries(call)):
                message = messages[results[place]]
                faults[results[place]] = fault = _fault_in(message)
                self._searched(message, queries, number, fault)
                if not fault:
                    searched.append(text_of(message.get("content")))
                    unshown &= "hits" in message and not searched[-1]
        for at in turn.following:
            text = text_of(messages[at].get("content"))
            if at not in matched:
                self.told.add(number)
                blocks.append((MESSAGE, self._escape(text)))
                continue
            call = calls[matched[at]]
            self.reader.tools[call.name] += 1
            if not self.reader.queries(call):
                blocks.append((TOOL, self.reader.shown(text)))
                self.calls.append(Call(number, call.name, call.object, text))
            elif faults[at]:
                blocks.append((MESSAGE, self._escape(text)))
        if searched and not unshown:
            tag = self.reader.protocol.grammar.observation
            blocks.insert(0, (tag, self.reader.shown("\n\n".join(searched))))
        following = self.chat.sampled.get(turn.following[-1] + 1) if turn.following else None
        for at, (tag, text) in enumerate(blocks):
            self._read(tag, text, following.read if following and len(blocks) == 1 and at == 0 else ())

    def _searched(self, message: JsonObject, queries: Sequence[str], number: int, fault: str) -> None:
        if fault:
            made = [Search(query, fault=fault, turn=number) for query in queries]
        elif (own := own_hits(message.get("hits"))) is not None:
            given = message.get("selected")
            chosen = _chosen(given if isinstance(given, list) else None, own)
            made = [Search(query, own, turn=number, selected=chosen) for query in queries]
        else:
            result = message["hits"] if "hits" in message else text_of(message.get("content"))
            made = [
                Search(query, hits, failure or None, number)
                for query, (failure, hits) in zip(
                    queries, found_by_query(result, len(queries), self.known), strict=True
                )
            ]
        self.searches += made
        self.reader.counts["searches"] += len(queries)
        for search in made:
            if search.fault is not None:
                self.reader.counts["failed_searches"] += 1
            elif not search.hits:
                self.reader.counts["searches_without_hits"] += 1

    def _called(self, call: ToolCallText) -> str:
        """A call in the protocol's tags. Searches are written as calls of the protocol's own tool."""
        queries = self.reader.queries(call)
        row: JsonObject = {"name": call.name, "arguments": call.arguments}
        if queries:
            row = {"name": "search", "arguments": {"query": [*queries]}}
        return f"<tool_call>{self._escape(json.dumps(row, ensure_ascii=False))}</tool_call>"

    def _answered(self, text: str) -> str:
        return f"<answer>{self._escape(text)}</answer>"

    def _escape(self, text: str) -> str:
        return self.reader.protocol.grammar.escape(text)

    def _read(self, tag: str, text: str, ids: tuple[int, ...]) -> None:
        self.segments.append(Segment(Author.ENVIRONMENT, tag, text, ids))


def _chosen(ids: Sequence[Json] | None, hits: Sequence[Hit]) -> tuple[str, ...] | None:
    """The chosen ids that are among the hits; `None` where no choice is known."""
    met = {hit.passage.id for hit in hits}
    return None if ids is None else tuple(one for one in ids if isinstance(one, str) and one in met)


def _fault_in(message: JsonObject) -> str:
    """What a tool's message says of a failed search: our own mark, LangChain's status, or its text; "" for a result."""
    if fault := message.get("fault"):
        return str(fault)
    text = text_of(message.get("content"))
    if message.get("status") == "error":
        return text or "the tool failed"
    return text if "hits" not in message and is_fault(text) else ""
