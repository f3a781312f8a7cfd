"""Trajectory and token ledger: one question's whole run, exactly as it was sampled.

Token truth: the ids in here are what a model sampled or what was tokenised once, when it was inserted.
A segment's text is the decoding of its ids, never the other way round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, chain
from typing import cast

from coseek.core import fields
from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data import answers
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.readable import as_html, as_text

SCHEMA = 2
"""Version of the trajectory object in `trajectories.jsonl`."""

PROMPT, RETRY, PAGE, MISSING, TOOL, MESSAGE = "prompt", "retry", "page", "missing", "tool", "message"
"""Tags of environment segments that every protocol has: what the agent reads first, a request to try again after a turn
that asked for nothing, a page of a document, a notice that there is no such page, the result of another tool, and what
somebody else wrote in the middle of an imported conversation. All other environment segments show what a turn's
searches found."""


class Author(StrEnum):
    """Who wrote a segment: the agent is trained on, the environment never."""

    AGENT = "agent"
    ENVIRONMENT = "environment"


class StopReason(StrEnum):
    """Why a run ended."""

    ANSWERED = "answered"
    DECLINED = "declined"
    """The agent says that it has no answer, in a form that its protocol's grammar knows."""
    COMPLETE = "complete"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    INVALID = "invalid"
    RETRIEVER_ERROR = "retriever_error"
    MODEL_ERROR = "model_error"
    TOOL_ERROR = "tool_error"

    @property
    def is_fault(self) -> bool:
        """A part failed, so this run says nothing about the agent: it is counted, not scored."""
        return self in (StopReason.RETRIEVER_ERROR, StopReason.MODEL_ERROR, StopReason.TOOL_ERROR)


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of a trajectory, written by one author."""

    author: Author
    tag: str
    """What it is: `prompt`, `information`, …; for the agent the tag that ended its turn (`search`, …), or empty."""
    text: str
    """The decoding of `ids`, special tokens included; that of a log whose ids are not known, where `ids` is empty."""
    ids: tuple[int, ...]
    """Exactly what was sampled, or what was inserted; never re-tokenised."""
    logprobs: tuple[float, ...] = ()
    """Natural log at the sampling temperature, one per agent token; empty for the environment."""
    version: int | None = None
    """Version of the weights that sampled the ids; `None` where the model does not tell."""
    message: JsonObject | None = None
    """The assistant's message that the environment read in the turn of an agent with native tool calls: `content`,
    `reasoning_content` and `tool_calls`. `None` in all other segments."""

    def __post_init__(self) -> None:
        wanted = len(self.ids) if self.author is Author.AGENT else 0
        if len(self.logprobs) != wanted:
            raise DataError(
                f"a segment by the {self.author} holds {len(self.ids)} tokens, which needs {wanted} "
                f"log-probabilities, and has {len(self.logprobs)}"
            )
        if self.version is not None and (self.author is not Author.AGENT or type(self.version) is not int):
            raise DataError(f"a version of weights is a whole number, and the agent's alone; {self.version!r} is not")
        if self.message is not None and self.author is not Author.AGENT:
            raise DataError("a segment by the environment holds an assistant's message")

    def to_json(self) -> JsonObject:
        row: JsonObject = {"author": str(self.author), "tag": self.tag, "text": self.text, "ids": list(self.ids)}
        if self.author is Author.AGENT:
            row["logprobs"] = list(self.logprobs)
        if self.version is not None:
            row["version"] = self.version
        if self.message is not None:
            row["message"] = self.message
        return row

    @classmethod
    def from_json(cls, row: JsonObject) -> "Segment":
        return cls(
            author=Author(str(row["author"])),
            tag=fields.text(row, "tag"),
            text=fields.text(row, "text"),
            ids=fields.tokens(row, "ids"),
            logprobs=fields.numbers(row, "logprobs"),
            version=fields.whole_or_none(row, "version"),
            message=None if row.get("message") is None else fields.mapping(row, "message"),
        )


@dataclass(frozen=True, slots=True)
class Search:
    """One query and what came back. `fault` is set when the retriever failed, and then `hits` is empty."""

    query: str
    hits: tuple[Hit, ...] = ()
    fault: str | None = None
    turn: int | None = None
    """Which of the agent's turns asked it, from 1; 0 for the search that opens a run. Searches of one turn were shown
    in one block. Unknown in runs that are older than this field."""
    selected: tuple[str, ...] | None = None
    """Ids of the hits that the agent chose; `None` when it made no choice, which is not the same as choosing none."""

    def to_json(self) -> JsonObject:
        row: JsonObject = {"query": self.query, "hits": [hit.to_json() for hit in self.hits]}
        if self.fault is not None:
            row["fault"] = self.fault
        if self.turn is not None:
            row["turn"] = self.turn
        if self.selected is not None:
            row["selected"] = list(self.selected)
        return row

    @classmethod
    def from_json(cls, row: JsonObject) -> "Search":
        return cls(
            query=fields.text(row, "query"),
            hits=tuple(Hit.from_json(hit) for hit in fields.objects(row, "hits")),
            fault=fields.text_or_none(row, "fault"),
            turn=fields.whole_or_none(row, "turn"),
            selected=None if row.get("selected") is None else fields.texts(row, "selected"),
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool other than search and visit. `fault` is set when it failed, and then `result` is None."""

    turn: int
    """Which of the agent's turns made it, from 1."""
    tool: str
    """The name that the agent called."""
    arguments: JsonObject
    result: Json = None
    fault: str | None = None

    def to_json(self) -> JsonObject:
        row: JsonObject = {"turn": self.turn, "tool": self.tool, "arguments": self.arguments}
        return {**row, **({"result": self.result} if self.fault is None else {"fault": self.fault})}

    @classmethod
    def from_json(cls, row: JsonObject) -> "Call":
        fault = fields.text_or_none(row, "fault")
        return cls(
            turn=fields.whole(row, "turn"),
            tool=fields.text(row, "tool"),
            arguments=fields.mapping(row, "arguments"),
            result=row["result"] if fault is None else None,
            fault=fault,
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit that showed a found passage with others of its document."""

    turn: int
    """Which of the agent's turns made it, from 1."""
    id: str
    """The passage that was asked for."""
    passages: tuple[Passage, ...]
    """All that were shown, in the order of the document."""

    def shows(self, ident: str) -> bool:
        """Whether a passage with this id is among those that were shown."""
        return any(passage.id == ident for passage in self.passages)

    def to_json(self) -> JsonObject:
        return {"turn": self.turn, "id": self.id, "passages": [passage.to_json() for passage in self.passages]}

    @classmethod
    def from_json(cls, row: JsonObject) -> "Visit":
        return cls(
            turn=fields.whole(row, "turn"),
            id=fields.text(row, "id"),
            passages=tuple(Passage.from_json(passage) for passage in fields.objects(row, "passages")),
        )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One question's whole run.

    A run is *truncated* when a budget ended it (`turn_limit`, `token_limit`). `seed` is the seed of this row's
    randomness: the same seed, model and retriever give the same trajectory, alone or in any batch.
    """

    question: Question
    protocol: str
    segments: tuple[Segment, ...]
    searches: tuple[Search, ...]
    stop: StopReason
    answer: str | None = None
    valid: bool = False
    """The form is the protocol's (the *format* of the papers)."""
    format_error: str = ""
    """Why the form is not valid; empty when it is."""
    stop_detail: str = ""
    """What failed, for a fault."""
    selected_ids: tuple[str, ...] = ()
    """The passages that the agent chose as its evidence, each once, in the order of its searches."""
    side_contexts: tuple[tuple[Segment, ...], ...] = ()
    """What the agent's model read and wrote outside of this context, such as notes on documents: each a prompt and
    one turn. Their ids are in no segment, so they are in no batch; what came of them is the environment's text."""
    seed: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part (`model_s`, `retriever_s`); wall time, so never compared for equality of runs."""
    exact: bool = True
    """The agent's ids and log-probabilities are what was sampled. False when a server gave text only (the ids are that
    text encoded once and 0 stands for unknown log-probabilities), and for logs of somebody else's agent (ids only where
    the log has them). Such a run is measured and never trained on."""
    cost_usd: float | None = None
    """What a server asked for the model's turns, in dollars; `None` where nothing is paid or a part is not known."""
    calls: tuple[Call, ...] = ()
    """Calls of tools other than search and visit, which have `searches` and segments with the tag `page`."""
    evidence: tuple[str, ...] | None = None
    """Ids of all passages that were retrieved or visited, each once, best first (`data/evidence.py`). `None` in older
    runs, which do not hold it."""
    visits: tuple[Visit, ...] = ()
    """Visits that showed more than the passage that a search had found."""
    messages: tuple[JsonObject, ...] = ()
    """The messages of an imported conversation, exactly as the log has them; empty for runs of coseek."""
    logged_protocol: str | None = None
    """The protocol that an imported log names, where its segments are written in the tags of another."""

    def __repr__(self) -> str:
        outcome = f"{self.answer!r}, {self.stop}, {len(self.searches)} searches"
        return f"Trajectory({self.question.question.strip()!r}, {outcome}, {self.protocol})"

    def __str__(self) -> str:
        """The conversation as text."""
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def exact_match(self) -> float:
        """1.0 if the answer equals a gold answer after normalisation, else 0.0. Raises `DataError` without any."""
        return float(answers.exact_match(self.answer, self._gold_answers))

    @property
    def f1(self) -> float:
        """Token F1 with the nearest gold answer. Raises `DataError` without any."""
        return answers.f1(self.answer, self._gold_answers)

    @property
    def _gold_answers(self) -> tuple[str, ...]:
        if self.question.answerable and not self.question.answers:
            raise DataError(f"question {self.question.id!r} has no gold answers to compare with")
        return self.question.answers

    @property
    def gold(self) -> tuple[str, ...]:
        """The gold answers."""
        return self.question.answers

    @property
    def gold_ids(self) -> tuple[str, ...]:
        """Ids of the gold passages."""
        return self.question.gold_ids

    @property
    def searches_made(self) -> int:
        return len(self.searches)

    @property
    def hits(self) -> tuple[Hit, ...]:
        """The hits of all searches, in the order of the searches."""
        return tuple(hit for search in self.searches for hit in search.hits)

    @property
    def text(self) -> str:
        """Everything after the prompt, as the model read and wrote it."""
        return "".join(segment.text for segment in self.segments[1:])

    @property
    def turn_spans(self) -> tuple[tuple[int, int], ...]:
        """The range of `ids`, start and end, that each turn of the agent wrote."""
        ends = list(accumulate(len(segment.ids) for segment in self.segments))
        return tuple(
            (end - len(segment.ids), end)
            for segment, end in zip(self.segments, ends, strict=True)
            if segment.author is Author.AGENT
        )

    @property
    def agent_protocol(self) -> str:
        """The protocol that its agent spoke."""
        return self.logged_protocol or self.protocol

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids in order."""
        return tuple(chain.from_iterable(segment.ids for segment in self.segments))

    @property
    def has_ids(self) -> bool:
        """Whether the ids of all its text are known."""
        return all(segment.ids or not segment.text for segment in self.segments)

    @property
    def agent_mask(self) -> tuple[bool, ...]:
        """True where the agent wrote the token of `ids`."""
        return tuple(segment.author is Author.AGENT for segment in self.segments for _ in segment.ids)

    @property
    def agent_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments if segment.author is Author.AGENT)

    @property
    def truncated(self) -> bool:
        return self.stop in (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)

    @property
    def declined(self) -> bool:
        """Whether the agent declined to answer. A run that a generator answers afterwards has an answer."""
        return self.stop is StopReason.DECLINED and self.answer is None

    @property
    def fault(self) -> tuple[StopReason, str] | None:
        """Which part failed, and its message. The fault ended the run, or one of a turn's searches has no result, so
        the agent read less than it had asked for: the run says nothing about the agent and is not scored."""
        if self.stop.is_fault:
            return self.stop, self.stop_detail
        lost = next((search.fault for search in self.searches if search.fault is not None), None)
        return None if lost is None else (StopReason.RETRIEVER_ERROR, lost)

    def to_json(self) -> JsonObject:
        row: JsonObject = {
            "schema": SCHEMA,
            "question": self.question.to_json(),
            "protocol": self.protocol,
            "stop": str(self.stop),
            "answer": self.answer,
            "valid": self.valid,
            "format_error": self.format_error,
            "stop_detail": self.stop_detail,
            "searches": [search.to_json() for search in self.searches],
            "selected_ids": list(self.selected_ids),
            **({} if self.evidence is None else {"evidence": list(self.evidence)}),
            "segments": [segment.to_json() for segment in self.segments],
            "seed": self.seed,
            "timings": dict(self.timings),
        }
        if self.side_contexts:
            row["side_contexts"] = [[segment.to_json() for segment in context] for context in self.side_contexts]
        if self.calls:
            row["calls"] = [call.to_json() for call in self.calls]
        if self.visits:
            row["visits"] = [visit.to_json() for visit in self.visits]
        if not self.exact:
            row["exact"] = False
        if self.cost_usd is not None:
            row["cost_usd"] = self.cost_usd
        if self.messages:
            row["messages"] = list(self.messages)
        if self.logged_protocol is not None:
            row["logged_protocol"] = self.logged_protocol
        return row

    @classmethod
    def from_json(cls, row: JsonObject) -> "Trajectory":
        if row.get("schema") != SCHEMA:
            raise DataError(f"a trajectory of schema {row.get('schema')!r}; this coseek reads {SCHEMA}: run it again")
        return cls(
            question=Question.from_json(fields.mapping(row, "question")),
            protocol=fields.text(row, "protocol"),
            segments=tuple(Segment.from_json(part) for part in fields.objects(row, "segments")),
            searches=tuple(Search.from_json(part) for part in fields.objects(row, "searches")),
            stop=StopReason(str(row["stop"])),
            answer=fields.text_or_none(row, "answer"),
            valid=fields.flag(row, "valid"),
            format_error=fields.text(row, "format_error"),
            stop_detail=fields.text(row, "stop_detail"),
            selected_ids=fields.texts(row, "selected_ids"),
            side_contexts=tuple(
                tuple(Segment.from_json(part) for part in context)
                for context in cast(list[list[JsonObject]], row.get("side_contexts", []))
            ),
            seed=fields.whole(row, "seed"),
            timings=fields.seconds(row, "timings"),
            exact=fields.flag({"exact": True, **row}, "exact"),
            cost_usd=fields.number_or_none(row, "cost_usd"),
            calls=tuple(Call.from_json(part) for part in fields.objects({"calls": [], **row}, "calls")),
            evidence=_idents(row.get("evidence")),
            visits=tuple(Visit.from_json(part) for part in fields.objects({"visits": [], **row}, "visits")),
            messages=tuple(fields.objects({"messages": [], **row}, "messages")),
            logged_protocol=fields.text_or_none(row, "logged_protocol"),
        )


def stop_of_decline(searches: Sequence[Search]) -> tuple[StopReason, str]:
    """Why a run ends whose agent declines, and the detail. After a failed search it is a fault: the retriever, and not
    the corpus, may be what lacks the answer."""
    lost = next((search.fault for search in searches if search.fault is not None), None)
    return (StopReason.DECLINED, "") if lost is None else (StopReason.RETRIEVER_ERROR, lost)


def _idents(value: Json) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(ident, str) for ident in value):
        raise DataError("evidence is a list of passage ids")
    return tuple(cast(list[str], value))
