"""Conversation: a logged chat with tool calls, and its conversion to a trajectory.

A message is an object with `role`, `content` and `tool_calls` in the form of OpenAI's chat completions
(`message_forms` converts other forms). The user's last question is the question; earlier messages are context. The
trajectory is written in the tags of `PROTOCOL`. All text of a log is data: marks in it are neutralised before ours are
added, only calls of the log become calls, and the run is never exact, so it is never trained on as sampled.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from coseek.agents.grammar import Span
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.tag import texts_of
from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import digest_of
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
    rank_evidence,
    stop_of_decline,
)
from coseek.models.tokenizer import ByteTokenizer
from coseek.models.written import ToolCallText, reasoning_in
from coseek.traces.calls import answer_in, as_json, calls_in, finished_in, reasoning_and_words, text_of
from coseek.traces.found_passages import found_by_query, is_fault, own_rows

PROTOCOL = "tongyi"
"""The protocol whose tags imported runs use: reasoning, JSON tool calls, a tagged answer."""
QUERY_ARGUMENTS = ("query", "queries", "q", "search_query", "question", "keywords", "input", "text")
"""Arguments of a search tool that may hold the query, in order of preference; else its only argument."""
_SEARCHES = re.compile("(?<!re)search|retriev", re.I)  # `ConductResearch` hands a task to another agent
_OBSERVED = re.compile(
    r"\A\s*+(<(tool_response|information|observation|results?|search_results?|documents?)\b|observation\s*:)", re.I
)
"""Beginning of a user's message that holds the result of a tool."""
_EMPTY = "the last message is empty"
_NO_RESULT = "(the log has no result of this call)"
_REMARKS = ("user", "system", "developer")
"""Roles of messages that may follow the answer."""
_MAY_ANSWER = (None, StopReason.ANSWERED, StopReason.DECLINED)
"""Stop reasons with which the last message may be the answer."""
_UNANSWERED = (StopReason.COMPLETE, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.INVALID)
"""Stop reasons that a log may name for a run without an answer."""
_UNCUT = 2**31
"""Token limit for results, which never cuts: the agent has read them completely."""


@dataclass(frozen=True, slots=True)
class SampledIds:
    """Logged token ids of one assistant message."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per id; 0 stands for unknown."""
    read: tuple[int, ...] = ()
    """Context between the previous message and this one; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a log."""

    question: Question
    messages: tuple[JsonObject, ...]
    where: str = ""
    """File and line."""
    answer: str | None = None
    """The final answer, if the log keeps it separately; else it is the text of the last message."""
    fault: str = ""
    """Why the run failed. Such a run is counted, never scored."""
    sampled: Mapping[int, SampledIds] = field(default_factory=dict)
    """By position of an assistant message."""
    stop: StopReason | None = None
    """Why the run ended, if logged. The last message alone is then no answer."""
    opening: tuple[Search, ...] = ()
    """Searches before the agent's first turn; only in logs of coseek, as are the next three."""
    evidence: tuple[str, ...] = ()
    """Ids of the retrieved passages, best first."""
    selected_ids: tuple[str, ...] = ()
    """Ids of the passages that the agent chose over the whole run."""
    visits: tuple[Visit, ...] = ()
    """Visits with the passages that they showed."""
    protocol: str | None = None
    """Name of the agent's protocol, if logged."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """Assistant messages with nothing between them, and the messages that follow; positions in the conversation."""

    written: tuple[int, ...]
    following: tuple[int, ...]


def question_at(messages: Sequence[JsonObject], given: str | None = None) -> int | None:
    """The position of the user's message with the question: the last question that an assistant's message follows.

    A user's message after a call is a result, not a question. With `given`: the message with this text, else the first
    that contains it, else the first; case and spaces do not count. `None` if no user's message has text.
    """
    texts = {index: text_of(row.get("content")).strip() for index, row in enumerate(messages) if row["role"] == "user"}
    users = [index for index, text in texts.items() if text]
    if given is not None:
        exact_indices = [index for index in users if plain(texts[index]) == plain(given)]
        if not exact_indices:
            return next((index for index in users if plain(given) in plain(texts[index])), next(iter(texts), None))
        users = exact_indices
    question_indices = [index for index in users if _asks(messages, index)] or users
    followed = [index for index in question_indices if any(row["role"] == "assistant" for row in messages[index:])]
    return next(reversed(followed or question_indices), None)


def plain(text: str) -> str:
    """A text without case and repeated spaces."""
    return " ".join(text.casefold().split())


def answered_at(messages: Sequence[JsonObject]) -> list[int]:
    """The positions of the user's questions that an assistant answered."""
    return [
        position
        for position, (row, following) in enumerate(pairwise(messages))
        if row["role"] == "user" and following["role"] == "assistant" and _asks(messages, position)
    ]


def _asks(messages: Sequence[JsonObject], index: int) -> bool:
    """Whether a user's message is a question: the first message, or one after a message without calls."""
    prior = next((row for row in reversed(messages[:index]) if row["role"] in ("assistant", "tool", "function")), None)
    if prior is None:
        return True
    calls = calls_in(prior)
    is_called = prior["role"] != "assistant" or (calls and not finished_in(calls))
    return not is_called and not _OBSERVED.match(text_of(messages[index].get("content")))


def turns_of(messages: Sequence[JsonObject], question: str) -> tuple[int, list[ChatTurn]]:
    """The number of messages that the agent read first, and its turns.

    Adjacent messages of the assistant are one turn, except final words after a call without a result.
    """
    roles = [message["role"] for message in messages]
    question_position = question_at(messages, question)
    begin = 0 if question_position is None else question_position + 1
    while begin < len(roles) and roles[begin] != "assistant":
        begin += 1
    turns: list[ChatTurn] = []
    for index in range(begin, len(roles)):
        last_turn = turns[-1] if turns else ChatTurn((), ())
        if roles[index] != "assistant":
            turns[-1] = ChatTurn(last_turn.written, (*last_turn.following, index))
        elif last_turn.following or not turns or _ends_after_call(messages, last_turn.written[-1], index):
            turns.append(ChatTurn((index,), ()))
        else:
            turns[-1] = ChatTurn((*last_turn.written, index), ())
    return begin, turns


def _ends_after_call(messages: Sequence[JsonObject], previous: int, index: int) -> bool:
    """Whether a message holds final words after a call without a result."""
    next_role = messages[index + 1]["role"] if index + 1 < len(messages) else None
    is_answered = next_role in ("tool", "function", "assistant")
    return bool(calls_in(messages[previous])) and not calls_in(messages[index]) and not is_answered


def _is_answer(messages: Sequence[JsonObject], last: ChatTurn) -> bool:
    """Whether a turn answers, and only remarks follow: thanks, an unanswered question, or a program's message."""
    calls = [call for at in last.written for call in calls_in(messages[at])]
    if finished_in(calls):
        return True
    following = [messages[at] for at in last.following]
    has_result = any(_OBSERVED.match(text_of(row.get("content"))) or row["role"] not in _REMARKS for row in following)
    return not has_result and not calls and any(reasoning_and_words(messages[at])[1].strip() for at in last.written)


def results_of(messages: Sequence[JsonObject], turn: ChatTurn) -> tuple[list[ToolCallText], dict[int, int]]:
    """The calls of a turn, and the results: position of a following message → number of its call.

    A result names its call by id. Results without an id, or with an id that no call of the conversation has, are
    matched in order with the calls that no result names; so are all results of calls without an id.
    """
    calls = [call for index in turn.written for call in calls_in(messages[index])]
    unmatched = dict(enumerate(calls))
    matched: dict[int, int] = {}
    results = [index for index in turn.following if messages[index]["role"] in ("tool", "function")]
    idents = {index: messages[index].get("tool_call_id") for index in results}
    known = {call.ident for call in calls}
    if any(isinstance(ident, str) and ident not in known for ident in idents.values()):
        known |= {call.ident for message in messages for call in calls_in(message)}
    idents = {index: ident if isinstance(ident, str) and ident in known else None for index, ident in idents.items()}
    for index in sorted(results, key=lambda index: idents[index] is None):  # those with an id first
        same_ident = (n for n, call in unmatched.items() if idents[index] is not None and call.ident == idents[index])
        other_calls = (n for n, call in unmatched.items() if idents[index] is None or call.ident is None)
        if (number := next(chain(same_ident, other_calls), None)) is not None:
            matched[index] = number
            del unmatched[number]
    return calls, matched


@dataclass
class ConversationReader:
    """Converts conversations to trajectories, and counts their parts."""

    search_tools: Sequence[str] = ()
    """Names of the tools that search; by default those whose name contains `search` or `retriev`."""
    query_argument: str = ""
    """The argument that holds the query."""
    tools: Counter[str] = field(default_factory=Counter)
    """Number of calls with a result, by the tool's name."""
    counts: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    """Counts of parts that are kept as text without being understood, by name."""
    protocol: Protocol = field(default_factory=lambda: load_protocol(PROTOCOL))

    def __post_init__(self) -> None:
        self._bytes = ByteTokenizer(self.protocol.grammar.special_tokens)

    def trajectory(self, chat: Conversation, seed: int) -> Trajectory:
        """The inexact run of a conversation."""
        begin, turns = turns_of(chat.messages, chat.question.question)
        if turns and chat.stop in _MAY_ANSWER and _is_answer(chat.messages, turns[-1]):
            remarks = [index for index in turns[-1].following if chat.messages[index]["role"] in _REMARKS]
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
        """The queries of a call; empty if it is no search, its arguments are malformed, or none holds a query."""
        if not self.is_search(call.name) or call.is_malformed:
            return ()
        arguments = call.arguments
        if not isinstance(arguments, dict):
            return texts_of(arguments)
        if self.query_argument:
            return texts_of(arguments.get(self.query_argument))
        only_values = arguments.values() if len(arguments) == 1 else ()
        candidates = (texts_of(value) for value in (*map(arguments.get, QUERY_ARGUMENTS), *only_values))
        return next(filter(None, candidates), ())

    def shown(self, text: str) -> str:
        """A result in the protocol's format."""
        return self._bytes.decode(self.protocol.template.result_ids(self._bytes, text, _UNCUT))


@dataclass
class _Writer:
    """Writes the trajectory of one conversation."""

    reader: ConversationReader
    chat: Conversation
    segments: list[Segment] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    answer: str | None = None
    ending: str = "the log ends without an answer"
    messaged: set[int] = field(default_factory=set)
    """Numbers of the turns after which there is a message other than a result, such as a visited page."""
    known: dict[str, Passage] = field(init=False)
    """The passages so far by id, first those that coseek wrote: their ids take precedence over those of other tools."""

    def __post_init__(self) -> None:
        hits = [own_rows(message["hits"], Hit.from_json) or () for message in self.chat.messages if "hits" in message]
        self.known = met_passages((*self.chat.opening, *(Search("", group) for group in hits)), self.chat.visits)

    def prompt(self, begin: int) -> None:
        """Write everything before the agent's first turn."""
        read_messages = self.chat.messages[:begin]
        self.searches = [
            replace(search, turn=0, selected=_chosen_ids(search.selected, search.hits)) for search in self.chat.opening
        ]
        texts = [text_of(message.get("content")) for message in read_messages]
        if len(read_messages) > 1:
            texts = [f"{message['role']}: {text}" for message, text in zip(read_messages, texts, strict=True)]
        text = "\n\n".join(texts) or self.chat.question.question
        sampled = self.chat.sampled.get(begin)
        self._add_segment(PROMPT, self._escape(text), sampled.read if sampled else ())

    def turn(self, turn: ChatTurn, number: int, is_last: bool) -> None:
        """Write one turn of the agent and the messages after it."""
        messages = self.chat.messages
        calls, matched = results_of(messages, turn)
        parts = [reasoning_and_words(messages[index]) for index in turn.written]
        content = "\n".join(text for _, text in parts if text.strip())
        reasoning = [reasoning_in(messages[index]) for index in turn.written] + [thought for thought, _ in parts]
        if is_last and not turn.following:
            answer, final_answer = self.chat.answer or "", finished_in(calls) if self.chat.stop in _MAY_ANSWER else ""
            calls = [] if final_answer else calls
            if not (answer or self.chat.stop or calls):
                answer = answer_in(final_answer or content)
            self.answer = None if calls else answer.strip() or None
            no_words = "" if content or final_answer else _EMPTY
            self.ending = "the log ends with a call that has no result" if calls else no_words
        self._write_turn(turn, calls, "\n".join(filter(None, reasoning)).strip(), content)
        self._observe(turn, calls, matched, number)
        if calls and not turn.following and not is_last:
            self._add_segment(MESSAGE, _NO_RESULT, ())
        self.reader.counts["calls_without_result"] += len(calls) - len(matched)
        for call in calls:
            if call.is_malformed:
                self.reader.unread["calls with arguments that are not JSON, which are no queries"] += 1
            elif self.reader.is_search(call.name) and not self.reader.queries(call):
                self.reader.unread["searches without a query that can be read (query_argument=NAME)"] += 1

    def finish(self, seed: int) -> Trajectory:
        chat = self.chat
        if chat.answer is not None and self.segments[-1].author is Author.ENVIRONMENT:
            self.segments.append(Segment(Author.AGENT, "answer", self._answer_text(chat.answer), ()))
        self.answer = chat.answer or self.answer
        grammar = self.reader.protocol.grammar
        if chat.fault:
            stop, detail, self.answer = StopReason.MODEL_ERROR, chat.fault, None
        elif self.answer is not None and self._is_decline(self.answer):
            (stop, detail), self.answer = stop_of_decline(self.searches), None
        elif self.answer is not None:
            stop, detail = StopReason.ANSWERED, ""
        else:
            stop, detail = self._stop_without_answer(), self.ending
            self.reader.counts["without_answer"] += 1
        format_error = grammar.format_error(grammar.spans(self.segments))
        passages, visits = met_passages(self.searches, ()), self._visits()
        digests = {digest_of(each.title, each.text)[:16] for each in passages.values() if chat.question.gold_ids}
        if digests & passages.keys():
            self.reader.unread["runs whose hits have no ids to compare with gold_ids: recall cannot be measured"] += 1
        chosen_ids = [*chat.selected_ids, *(ident for search in self.searches for ident in search.selected or ())]
        selected_ids = tuple(dict.fromkeys(ident for ident in chosen_ids if ident in passages))
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
            selected_ids=selected_ids,
            evidence=rank_evidence(self.searches, chat.evidence or selected_ids, visits),
            visits=visits,
            messages=chat.messages,
            logged_protocol=None if chat.protocol == self.reader.protocol.name else chat.protocol,
        )

    def _visits(self) -> tuple[Visit, ...]:
        """The plausible visits of the log, one per turn: each showed the requested passage, in a message."""
        visits = {
            visit.turn: visit for visit in self.chat.visits if visit.turn in self.messaged and visit.shows(visit.id)
        }
        return tuple(visits[turn] for turn in sorted(visits))

    def _is_decline(self, answer: str) -> bool:
        """Whether an answer declines. If the log calls it an answer, it is one: other protocols decline otherwise."""
        span = Span(Author.AGENT, "answer", answer)
        return self.chat.stop is not StopReason.ANSWERED and self.reader.protocol.grammar.is_decline(span)

    def _stop_without_answer(self) -> StopReason:
        """Why a run without an answer ended: as logged, else by its last message."""
        stop = self.chat.stop
        # Only the agent completes a run.
        is_wrong = stop is StopReason.COMPLETE and self.segments[-1].author is Author.ENVIRONMENT
        if stop in _UNANSWERED and not is_wrong:
            return stop
        return StopReason.INVALID if self.ending == _EMPTY else StopReason.TURN_LIMIT

    # --- parts of a turn

    def _write_turn(self, turn: ChatTurn, calls: Sequence[ToolCallText], reasoning: str, content: str) -> None:
        """Write the agent's segment: reasoning, content, and calls or an answer in the protocol's tags."""
        pieces = [self._escape(reasoning), "" if self.answer == content.strip() else self._escape(content)]
        tag = "tool_call" if calls else "" if self.answer is None else "answer"
        if tag == "answer":
            pieces.append(self._answer_text(self.answer or ""))
        text = "\n".join(filter(None, (*pieces, *map(self._call_text, calls))))
        sampled = self.chat.sampled.get(turn.written[0]) if len(turn.written) == 1 else None
        ledger = (sampled.ids, sampled.logprobs) if sampled else ((), ())
        self.segments.append(Segment(Author.AGENT, tag, text, *ledger))

    def _observe(self, turn: ChatTurn, calls: Sequence[ToolCallText], matched: Mapping[int, int], number: int) -> None:
        """Write the results: one segment for all searches, and one for each other message."""
        messages, blocks = self.chat.messages, list[tuple[str, str]]()
        searched: list[str] = []
        is_shown = False  # results of coseek after the last turn have hits and no text
        faults = dict[int, str]()
        for index, call in sorted(matched.items(), key=lambda match: match[1]):
            if queries := self.reader.queries(calls[call]):
                faults[index] = self._store_searches(messages[index], queries, number)
                if not faults[index]:
                    searched.append(text_of(messages[index].get("content")))
                    is_shown |= "hits" not in messages[index] or bool(searched[-1])
        for index in turn.following:
            text = text_of(messages[index].get("content"))
            if index not in matched:
                self.messaged.add(number)
                blocks.append((MESSAGE, self._escape(text)))
                continue
            tool_call = calls[matched[index]]
            self.reader.tools[tool_call.name] += 1
            if index not in faults:
                blocks.append((TOOL, self.reader.shown(text)))
                self.calls.append(Call(number, tool_call.name, tool_call.object, text))
            elif faults[index]:
                blocks.append((MESSAGE, self._escape(text)))
        if is_shown:
            blocks.insert(0, (self.reader.protocol.grammar.observation, self.reader.shown("\n\n".join(searched))))
        next_sampled = self.chat.sampled.get(turn.following[-1] + 1) if turn.following else None
        for tag, text in blocks:
            self._add_segment(tag, text, next_sampled.read if next_sampled and len(blocks) == 1 else ())

    def _store_searches(self, message: JsonObject, queries: Sequence[str], number: int) -> str:
        """Store the searches of a call, whose result is `message`. Returns the message's fault, "" without one."""
        fault = _fault_in(message)
        if fault:
            searches = [Search(query, fault=fault, turn=number) for query in queries]
        elif (own_hits := own_rows(message.get("hits"), Hit.from_json)) is not None:
            selected = message.get("selected")
            chosen_ids = _chosen_ids(selected if isinstance(selected, list) else None, own_hits)
            searches = [Search(query, own_hits, turn=number, selected=chosen_ids) for query in queries]
        else:
            result = message["hits"] if "hits" in message else text_of(message.get("content"))
            answers = zip(queries, found_by_query(result, len(queries), self.known), strict=True)
            searches = [Search(query, hits, failure or None, number) for query, (failure, hits) in answers]
            if any(len(search.hits) == 1 and "\n\n" in search.hits[0].passage.text for search in searches):
                self.reader.unread["results that are one passage of several paragraphs, perhaps several passages"] += 1
        self.searches += searches
        for search in searches:
            self.reader.counts["searches"] += 1
            if search.fault is not None:
                self.reader.counts["failed_searches"] += 1
            elif not search.hits:
                self.reader.counts["searches_without_hits"] += 1
        return fault

    def _call_text(self, call: ToolCallText) -> str:
        """A call in the protocol's tags. Searches become calls of the protocol's own tool."""
        row: JsonObject = {"name": call.name, "arguments": call.arguments}
        if queries := self.reader.queries(call):
            row = {"name": "search", "arguments": {"query": [*queries]}}
        return f"<tool_call>{self._escape(as_json(row))}</tool_call>"

    def _answer_text(self, text: str) -> str:
        return f"<answer>{self._escape(text)}</answer>"

    def _escape(self, text: str) -> str:
        return self.reader.protocol.grammar.escape(text)

    def _add_segment(self, tag: str, text: str, ids: tuple[int, ...]) -> None:
        self.segments.append(Segment(Author.ENVIRONMENT, tag, text, ids))


def _chosen_ids(ids: Sequence[Json] | None, hits: Sequence[Hit]) -> tuple[str, ...] | None:
    """The chosen ids that are among the hits; `None` if no choice is known."""
    hit_ids = {hit.passage.id for hit in hits}
    return None if ids is None else tuple(ident for ident in ids if isinstance(ident, str) and ident in hit_ids)


def _fault_in(message: JsonObject) -> str:
    """The fault in a tool's message: our own field, Inspect's error, LangChain's status, or the text; "" for a
    result."""
    if fault := message.get("fault") or message.get("error"):
        return text_of(fault) or str(fault)
    text = text_of(message.get("content"))
    if message.get("status") == "error":
        return text or "the tool failed"
    return text if "hits" not in message and is_fault(text) else ""
