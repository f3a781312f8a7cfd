"""Records: reads the conversations of log files of any form. Records that cannot be read are skipped and reported.

A file holds JSON lines, one JSON object or a list of objects. A record is an ATIF document, a list of messages, or an
object; `TraceSettings` name the places of its parts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pydantic import Field

from coseek.agents.tag import texts_of
from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, read_byte_lines, read_json
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.core.strict_json import InvalidJson, is_deep, parse_strict
from coseek.data.imports._sources import kind_of
from coseek.data.passage import DEEPEST_META
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason, Visit
from coseek.models.written import refusal_in
from coseek.traces.atif import conversation_parts, is_atif
from coseek.traces.calls import as_json, calls_in, finished_in, parsed, reasoning_and_words, text_of, tool_call
from coseek.traces.conversation import Conversation, SampledIds, answered_at, plain, question_at
from coseek.traces.found_passages import own_rows
from coseek.traces.message_forms import chat_messages, count_unread
from coseek.traces.shapes import ANSWERS, is_message, message_lists, object_of, said_in, tool_name_in

LINES = (".jsonl", ".jsonlines", ".ndjson")
KINDS = (*LINES, ".json")
EARLIER = "earlier questions of conversations; each run answers the last one (question=PATH names another)"
_QUESTION_MARKS = {*"?\uff1f\u061f"}
_UNSAID = ("", "(refusal)")
"""Texts of a message that is only a refusal."""
OWN = ("id", "question", "answers", "gold_ids")
"""Fields of a question that are read under their own names by default."""


class TraceSettings(Settings):
    """How to read logs. A path lists the keys to a value, separated by dots: `output.trace`, `calls.0.name`."""

    map: str = ""
    """A YAML file with these settings; typed settings override it."""
    search_tools: list[str] = Field(default=[])
    """Names of the tools that search; by default those whose name contains `search` or `retriev`."""
    query_argument: str = ""
    """Argument of a search tool that holds its queries; by default `query`, `q`, … or the only one."""
    id: str = ""
    """Path of the question's id; by default `id`, else a digest of the question."""
    question: str = ""
    """Path of the question; by default `question`, else the first message of a user."""
    answers: str = ""
    """Path of the gold answers, a text or a list; by default `answers` or `golden_answers`."""
    gold_ids: str = ""
    """Path of the ids of the gold passages; by default `gold_ids`."""
    answer: str = ""
    """Path of the agent's final answer; by default the text of the last message, else a field such as `response`."""
    fault: str = ""
    """Path of an error that ended the run. If it holds anything, the run is counted and not scored."""
    messages: str = ""
    """Path of the list of messages; by default `messages`."""
    steps: str = ""
    """Path of a list of search steps, for logs without messages. The next three paths start at a step; LangChain's
    `intermediate_steps` need none."""
    reasoning: str = "reasoning"
    """Path, in a step, of the agent's text before its query."""
    query: str = "query"
    """Path, in a step, of the query or a list of queries. A step without a query is a turn without a search."""
    results: str = "results"
    """Path, in a step, of the results: a list of passages, or text."""


@dataclass(frozen=True, slots=True)
class RecordFault:
    """A record that is skipped."""

    where: str
    reason: str


@dataclass
class RecordReader:
    """Reads the conversations of files."""

    settings: TraceSettings
    used: Counter[str]
    """Path of the settings → number of records with a value there."""
    unread: Counter[str] = field(default_factory=Counter)
    """Counts of unread parts of the records, by name."""

    def read(self, path: Path) -> Iterator[Conversation | RecordFault]:
        """The conversations of a file, in order, or the faults of records that cannot be read."""
        try:
            for where, value in _values(path):
                try:
                    yield self._conversation(_parse_line(value) if isinstance(value, bytes) else value, where)
                except DataError as error:
                    yield RecordFault(where, str(error))
        except DataError as error:
            yield RecordFault(path.name, str(error))

    def _conversation(self, value: Json, where: str) -> Conversation:
        row: JsonObject = {"messages": value} if isinstance(value, list) else value if isinstance(value, dict) else {}
        if not row:
            raise DataError(f"an object or a list of messages is needed, not {type(value).__name__}")
        sampled: dict[int, SampledIds] = {}
        own_row = row
        is_ours = isinstance(row.get("run"), dict)  # exported by coseek, in our form; visited pages may contain tags
        if is_atif(row):
            messages, sampled = conversation_parts(row)
            checked_messages(cast(Json, messages))
            own_row = object_of(row.get("extra"))
        elif self.settings.steps:
            messages = self._steps(row)
        else:
            logged = parsed(self._field(row, "messages")) if self.settings.messages else self._messages_in(row)
            unread_count = self.unread.total()
            messages = checked_messages(logged if is_ours else chat_messages(logged, self.unread))
            if self.unread.total() == unread_count and not any(map(calls_in, messages)) and (name := tool_name_in(row)):
                label = "conversations without calls that can be read, but with fields of tools"
                count_unread(self.unread, label, name)
        if own_row is row and not is_ours and not self.settings.answer:
            messages = [*messages, *self._messages_beside(row, messages)]
        run = object_of(own_row.get("run"))
        answer = self._answer(row) if self.settings.answer else self._text(run.get("answer"))
        fault = self._text(self._field(row, "fault") if self.settings.fault else run.get("fault"))
        if not run and not self.settings.fault and (error := row.get("error")):
            if {"epoch", "messages"} <= row.keys() or {"inputs", "outputs"} <= row.keys():  # Inspect, LangSmith
                fault = self._text(object_of(error).get("message") or error)
            else:
                self.unread["records whose field 'error' holds something (fault=error counts them as failed)"] += 1
        if not fault and (refusal := refusal_in(messages[-1])) and text_of(messages[-1].get("content")) in _UNSAID:
            fault = f"the model refused: {refusal[:200]}"  # as for a server's refusal in a run of coseek
        stop = None if self.settings.answer or self.settings.fault else _stop_of(run, answer)
        if stop is not None and stop.is_fault:
            fault, stop = fault or str(stop), None
        question = self._question(row, own_row, messages)
        if not (run or answer or sampled):
            messages = self._until_next_question(messages, question.question)
        return Conversation(
            question,
            tuple(messages),
            where,
            answer=answer or None,
            fault=fault,
            sampled=sampled,
            stop=stop,
            opening=own_rows(run.get("opening"), Search.from_json) or (),
            evidence=_passage_ids(run.get("evidence")),
            selected_ids=_passage_ids(run.get("selected_ids")),
            visits=own_rows(run.get("visits"), Visit.from_json) or (),
            protocol=_protocol_of(run),
        )

    def _question(self, row: JsonObject, own_row: JsonObject, messages: Sequence[JsonObject]) -> Question:
        fields = {name: self._field(row, name) if getattr(self.settings, name) else own_row.get(name) for name in OWN}
        fields |= {"answers": self._golds(row, own_row), "gold_ids": _list_in(fields["gold_ids"])}
        record = object_of(fields["question"])
        record |= {name: value for name, value in fields.items() if value is not None and value is not record}
        if "question" not in record:
            index = question_at(messages)
            record["question"] = None if index is None else text_of(messages[index].get("content")).strip()
            if index is not None and (earlier_count := sum(at < index for at in answered_at(messages))):
                self.unread[EARLIER] += earlier_count
        if not isinstance(record["question"], str) or not record["question"].strip():
            raise DataError("there is no question: no message of a user with text, and none named by question=PATH")
        if isinstance(record.get("gold_ids"), str | int | float):
            record["gold_ids"] = [record["gold_ids"]]
        record.setdefault("id", digest_of(record["question"].strip())[:16])
        return Question.from_json(record)

    def _golds(self, row: JsonObject, own_row: JsonObject) -> Json:
        """The gold answers of a record, a text or a list, which may be in a text."""
        if self.settings.answers:
            return _list_in(self._field(row, "answers"))
        return _list_in(own_row.get("golden_answers") if own_row.get("answers") is None else own_row["answers"])

    def _until_next_question(self, messages: list[JsonObject], question: str) -> list[JsonObject]:
        """The messages up to the user's next question, if the record names this one. A program's message may follow
        words without a call, too, so only one with a question mark ends the run."""
        begin = question_at(messages, question) or 0
        is_found = plain(question) in plain(text_of(messages[begin].get("content")))
        for at in answered_at(messages) if is_found else ():
            if any(row["role"] == "assistant" for row in messages[begin:at]):
                reply, text = (text_of(row.get("content")).rstrip() for row in messages[at - 1 : at + 1])
                if set(text) & _QUESTION_MARKS and reply[-1:] not in _QUESTION_MARKS:  # else the agent had asked
                    self.unread["later questions of conversations, left out: each run answers its record's"] += 1
                    return messages[:at]
                self.unread["later messages of a user after words without a call; the last words are the answer"] += 1
        return messages

    def _answer(self, row: JsonObject) -> str:
        """The answer at its path: a text, or the text of the last message or first choice there."""
        value = self._field(row, "answer")
        inner = parsed(value)
        has_messages = isinstance(inner, dict) or (isinstance(inner, list) and all(map(is_message, inner)))
        messages = chat_messages(said_in(inner, at=self.settings.answer)[1] if has_messages else [], Counter())
        return reasoning_and_words(cast(list[JsonObject], messages)[-1])[1].strip() if messages else self._text(value)

    def _messages_beside(self, row: JsonObject, messages: Sequence[JsonObject]) -> list[JsonObject]:
        """The messages in a field outside a conversation that does not end with an answer."""
        last = next((row for row in reversed(messages) if row["role"] not in ("system", "developer")), messages[-1])
        calls, words = calls_in(last), reasoning_and_words(last)[1].strip() or refusal_in(last)
        if last["role"] == "assistant" and (finished_in(calls) or (words and not calls)):
            return []
        answers = texts_of(_list_in(row.get("answer")))
        is_gold = bool(answers) and {*answers} <= {*texts_of(self._golds(row, row))}
        name, items = said_in({**row, "answer": None} if is_gold else row, self.settings.answers)
        if not items:
            if is_gold and self.settings.answers != "answer":
                self.unread["fields 'answer' that repeat a gold answer and are not read (answer=PATH)"] += 1
            return []
        known, new = contents_of(messages), contents_of(items)
        if known[-len(new) :] == new or (any(calls for *_, calls in new) and {*new} <= {*known}):
            return []  # read already
        self.unread[f"answers from the field {name!r} beside the messages (answer=PATH names another)"] += 1
        return checked_messages(chat_messages(items, self.unread))

    def _messages_in(self, row: JsonObject) -> Json:
        """The `messages` of an object; else its first list of messages, with the model's output after it; else a prompt
        and an output that are texts."""
        if row.get("messages") is not None:
            return parsed(row["messages"])
        joined: list[Json] = []
        has_output = False
        for path, items in message_lists(row):
            known, new = contents_of(joined), contents_of(items)
            is_context = not any(role == "assistant" for role, *_ in known)
            is_output = not {*path.split(".")}.isdisjoint(ANSWERS)
            goes_on = bool(known and new) and known[-1][0] != "assistant" and new[0][0] != "user"
            if not joined or (known and new[: len(known)] == known):  # LangGraph's output is its whole state
                joined = items
            elif new and known[-len(new) :] == new:
                continue
            elif is_context or goes_on or (is_output and not has_output):
                joined = [*joined, *items]
            else:
                count_unread(self.unread, "other lists of messages in a record (messages=PATH names one)", path)
                continue
            has_output |= is_output
        prompt = next((text for name in ("input", "prompt") if isinstance(text := row.get(name), str)), "")
        if not joined and "assistant" not in prompt[-24:]:  # which ends the prompt of a chat template
            prompt = self._text(row.get("question")) or prompt
            joined = said_in({name: row[name] for name in ANSWERS if name in row})[1] if prompt else []
        is_asked = any(plain(text) == plain(prompt) for _, text, _ in contents_of(joined)[:1])
        prompts: list[Json] = [{"role": "user", "content": prompt}] if prompt and joined and not is_asked else []
        return [*prompts, *joined] or None

    def _steps(self, row: JsonObject) -> list[JsonObject]:
        """Messages of a record whose steps are searches, or LangChain's pairs of an action and its result."""
        steps = parsed(self._field(row, "steps"))
        if not isinstance(steps, list) or not all(isinstance(step, dict) or _is_pair(step) for step in steps):
            raise DataError(f"steps={self.settings.steps} names no list of objects")
        question = self._field(row, "question") if self.settings.question else row.get("question")
        messages: list[JsonObject] = [{"role": "user", "content": self._text(question)}]
        for number, step in enumerate(steps, start=1):
            if isinstance(step, dict):
                thought, results = self._field(step, "reasoning"), self._field(step, "results")
                queries = texts_of(self._field(step, "query"))
                tool, arguments = "search" if queries else "", as_json({"query": [*queries]})
            else:
                action, results = cast(tuple[JsonObject, Json], step)
                thought, tool, arguments = action.get("log"), str(action["tool"]), as_json(action.get("tool_input"))
            message: JsonObject = {"role": "assistant", "content": self._text(thought)}
            messages.append(message)
            if tool:
                message["tool_calls"] = [tool_call(f"call_{number}", tool, arguments)]
            if tool and results is not None:
                content = results if isinstance(results, str) else as_json(results)
                messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": content})
        return messages

    def _field(self, row: JsonObject, name: str) -> Json:
        """The value of a record at the path of a setting; `None` without one."""
        value = _value_at(row, str(getattr(self.settings, name)).split("."))
        self.used[name] += value is not None
        return value

    @staticmethod
    def _text(value: Json) -> str:
        return "" if value is None or value is False else text_of(value).strip()


def _value_at(value: Json, keys: Sequence[str]) -> Json:
    """The value at a path in a value or in the JSON in a text. Keys may contain dots; the longest match counts."""
    if not keys:
        return value
    inner_value = parsed(value)
    if isinstance(inner_value, list) and keys[0].isdecimal() and int(keys[0]) < len(inner_value):
        return _value_at(inner_value[int(keys[0])], keys[1:])
    row = object_of(inner_value)
    ends = {".".join(keys[:end]): end for end in range(len(keys), 0, -1)}
    values = (_value_at(row[key], keys[end:]) for key, end in ends.items() if key in row)
    return next((item for item in values if item is not None), None)


def contents_of(items: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Role, text and calls of messages in any form, to compare them. System prompts do not count."""
    return [
        (str(row.get("role")), text_of(row.get("content")).strip(), "".join(map(str, calls_in(row))))
        for row in cast(list[Json], chat_messages([*items], Counter()))
        if isinstance(row, dict) and row and row.get("role") not in ("system", "developer")
    ]


def _list_in(value: Json) -> Json:
    """The list in a text. Other values are returned unchanged."""
    return inner if isinstance(inner := parsed(value), list) else value


def _is_pair(step: Json) -> bool:
    """Whether a step is LangChain's pair of an action and its result."""
    return isinstance(step, list) and len(step) == 2 and isinstance(step[0], dict) and "tool" in step[0]


def _stop_of(run: JsonObject, answer: str) -> StopReason | None:
    """The stop reason in a record; `None` without one, or if the answer that it implies is missing."""
    stop = next((stop for stop in StopReason if stop == run.get("stop")), None)
    return None if stop in (StopReason.ANSWERED, StopReason.DECLINED) and not answer else stop


def _protocol_of(run: JsonObject) -> str | None:
    """The name of a run's protocol. File names are ignored: a log must not choose files to read here."""
    name = run.get("protocol")
    return name if isinstance(name, str) and name and not name.endswith((".yaml", ".yml")) else None


def _passage_ids(value: Json) -> tuple[str, ...]:
    """The ids of passages in a list."""
    return tuple(ident for ident in value if isinstance(ident, str)) if isinstance(value, list) else ()


def checked_messages(value: Json) -> list[JsonObject]:
    """The value, if it is a list of messages. Raises `DataError` for any other value."""
    if not isinstance(value, list) or not value:
        raise DataError("there is no list of messages; name messages=PATH or steps=PATH (jq -s joins lines to a list)")
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f"message {number} is no object with a role")
    if is_deep(value, DEEPEST_META):
        raise DataError(f"its messages are nested more than {DEEPEST_META} deep")
    return cast(list[JsonObject], value)


def _values(path: Path) -> Iterator[tuple[str, "Json | bytes"]]:
    """The JSON values of a file, or the lines with one each, with their places."""
    if kind_of(path) in LINES:
        yield from ((f"{path.name}, line {number}", line) for number, line in read_byte_lines(path) if line.strip())
        return
    if kind_of(path) in (".eval", ".zip"):
        raise DataError(f"an archive; unpack it, or for one of Inspect: inspect log dump {path.name} > log.json")
    value = read_json(path)
    if isinstance(value, dict) and not (is_atif(value) or "question" in value or any(message_lists(value))):
        fields = (rows for rows in value.values() if isinstance(rows, list))
        lists = [rows for rows in fields if any(any(message_lists(row)) for row in rows)]
        value = lists[0] if len(lists) == 1 else value  # such as the samples of Inspect
    is_list = isinstance(value, list) and not all(map(is_message, value))
    for number, item in enumerate(cast(list[Json], value) if is_list else [value], start=1):
        yield f"{path.name}, item {number}" if is_list else path.name, item


def _parse_line(line: bytes) -> Json:
    try:
        return parse_strict(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise DataError("not UTF-8 text") from None
    except InvalidJson as error:
        raise DataError(str(error)) from None
