"""Trajectory and token ledger: one question's whole run, exactly as it was sampled; its evidence, and how it is shown.

Token truth: the ids in here are what a model sampled or what was tokenised once, when it was inserted.
A segment's text is the decoding of its ids, never the other way round.

Evidence: ids of all retrieved passages, each once, best first, for storage, metrics, rewards and generators. What is
stored counts. Otherwise selected passages come first, in the order of selection, then the others in the order of
retrieval, and last those that only a visit showed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from itertools import accumulate, chain
from typing import Annotated, NamedTuple

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.record import (
    OMIT_EMPTY,
    OMIT_NONE,
    OMIT_TRUE,
    OPTIONAL,
    Number,
    PlainJson,
    PlainObject,
    Record,
    Schema,
    TokenIds,
)
from coseek.data import answers
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question

SCHEMA = 2
"""Version of the trajectory object in `trajectories.jsonl`."""

PROMPT, RETRY, PAGE, MISSING, TOOL, MESSAGE = "prompt", "retry", "page", "missing", "tool", "message"
LAST_WORD = "last_word"
"""Tags of environment segments that every protocol has: what the agent reads first, a request to try again after a turn
that asked for nothing, a page of a document, a notice that there is no such page, the result of another tool, what
somebody else wrote in the middle of an imported conversation, and at a limit the request for an answer. All other
environment segments show what a turn's searches found."""


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
class Segment(Record):
    """One stretch of a trajectory, written by one author."""

    author: Author
    tag: str
    """What it is: `prompt`, `information`, …; for the agent the tag that ended its turn (`search`, …), or empty."""
    text: str
    """The decoding of `ids`, special tokens included; that of a log whose ids are not known, where `ids` is empty."""
    ids: TokenIds
    """Exactly what was sampled, or what was inserted; never re-tokenised."""
    logprobs: Annotated[tuple[float, ...], OPTIONAL] = ()
    """Natural log at the sampling temperature, one per agent token; empty for the environment."""
    version: Annotated[int | None, OMIT_NONE] = None
    """Version of the weights that sampled the ids; `None` where the model does not tell."""
    message: Annotated[PlainObject | None, OMIT_NONE] = None
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

    def _written(self, record: JsonObject) -> JsonObject:
        if self.author is Author.ENVIRONMENT:
            del record["logprobs"]
        return record


@dataclass(frozen=True, slots=True)
class Search(Record):
    """One query and what came back. `fault` is set when the retriever failed, and then `hits` is empty."""

    query: str
    hits: tuple[Hit, ...] = ()
    fault: Annotated[str | None, OMIT_NONE] = None
    turn: Annotated[int | None, OMIT_NONE] = None
    """Which of the agent's turns asked it, from 1; 0 for the search that opens a run. Searches of one turn were shown
    in one block. Unknown in runs that are older than this field."""
    selected: Annotated[tuple[str, ...] | None, OMIT_NONE] = None
    """Ids of the hits that the agent chose; `None` when it made no choice, which is not the same as choosing none."""


@dataclass(frozen=True, slots=True)
class Call(Record):
    """One call of a tool other than search and visit. `fault` is set when it failed, and then `result` is None."""

    turn: int
    """Which of the agent's turns made it, from 1."""
    tool: str
    """The name that the agent called."""
    arguments: PlainObject
    result: Annotated[PlainJson, OPTIONAL] = None
    fault: Annotated[str | None, OMIT_NONE] = None

    def _written(self, record: JsonObject) -> JsonObject:
        if self.fault is not None:
            del record["result"]
        return record

    @classmethod
    def _to_read(cls, record: JsonObject) -> JsonObject:
        return record if record.get("fault") is not None else {**record, "result": record["result"]}


@dataclass(frozen=True, slots=True)
class Visit(Record):
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


@dataclass(frozen=True, slots=True)
class Trajectory(Record):
    """One question's whole run.

    A run is *truncated* when a budget ended it (`turn_limit`, `token_limit`). `seed` is the seed of this row's
    randomness: the same seed, model and retriever give the same trajectory, alone or in any batch.
    """

    SCHEMA = Schema(SCHEMA, "a trajectory", ": run it again")
    KEYS = (
        "question", "protocol", "stop", "answer", "valid", "format_error", "stop_detail", "searches", "selected_ids",
        "evidence", "segments", "seed", "timings", "side_contexts", "calls", "visits", "exact", "cost_usd", "messages",
        "logged_protocol",
    )  # fmt: skip

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
    side_contexts: Annotated[tuple[tuple[Segment, ...], ...], OMIT_EMPTY] = ()
    """What the agent's model read and wrote outside of this context, such as notes on documents: each a prompt and
    one turn. Their ids are in no segment, so they are in no batch; what came of them is the environment's text."""
    seed: int = 0
    timings: Mapping[str, Number] = field(default_factory=dict)
    """Seconds by part (`model_s`, `retriever_s`); wall time, so never compared for equality of runs."""
    exact: Annotated[bool, OMIT_TRUE] = True
    """The agent's ids and log-probabilities are what was sampled. False when a server gave text only (the ids are that
    text encoded once and 0 stands for unknown log-probabilities), and for logs of somebody else's agent (ids only where
    the log has them). Such a run is measured and never trained on."""
    cost_usd: Annotated[Number | None, OMIT_NONE] = None
    """What a server asked for the model's turns, in dollars; `None` where nothing is paid or a part is not known."""
    calls: Annotated[tuple[Call, ...], OMIT_EMPTY] = ()
    """Calls of tools other than search and visit, which have `searches` and segments with the tag `page`."""
    evidence: Annotated[tuple[str, ...] | None, OMIT_NONE] = None
    """Ids of all passages that were retrieved or visited, each once, best first (`data/trajectory.py`). `None` in older
    runs, which do not hold it."""
    visits: Annotated[tuple[Visit, ...], OMIT_EMPTY] = ()
    """Visits that showed more than the passage that a search had found."""
    messages: Annotated[tuple[PlainObject, ...], OMIT_EMPTY] = ()
    """The messages of an imported conversation, exactly as the log has them; empty for runs of coseek."""
    logged_protocol: Annotated[str | None, OMIT_NONE] = None
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
        if self.question.answerable and not answers.can_match(self.question.answers):
            raise DataError(f"question {self.question.id!r} has no gold answers that an answer can match")
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
    def contexts(self) -> tuple[tuple[Segment, ...], ...]:
        """What each turn of the agent was written after: the segments before it."""
        return tuple(
            self.segments[:index] for index, segment in enumerate(self.segments) if segment.author is Author.AGENT
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
    def answered(self) -> bool:
        """Whether there is an answer, and it is not blank."""
        return bool((self.answer or "").strip())

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


def stop_of_decline(searches: Sequence[Search]) -> tuple[StopReason, str]:
    """Why a run ends whose agent declines, and the detail. After a failed search it is a fault: the retriever, and not
    the corpus, may be what lacks the answer."""
    lost = next((search.fault for search in searches if search.fault is not None), None)
    return (StopReason.DECLINED, "") if lost is None else (StopReason.RETRIEVER_ERROR, lost)


def evidence_of(trajectory: Trajectory) -> tuple[str, ...]:
    """The stored evidence of a run, or that of `ranked` for runs of older versions."""
    stored = trajectory.evidence
    return ranked(trajectory.searches, trajectory.selected_ids, trajectory.visits) if stored is None else stored


def ranked(searches: Sequence[Search], first: Iterable[str], visits: Sequence[Visit] = ()) -> tuple[str, ...]:
    """Ids of the retrieved passages: those of `first` in order, then the others in the order of `met_passages`."""
    met = met_passages(searches, visits)
    return tuple(dict.fromkeys((*(ident for ident in first if ident in met), *met)))


def met_passages(searches: Sequence[Search], visits: Sequence[Visit]) -> dict[str, Passage]:
    """By id what the searches found, in the order of retrieval, then what only visits showed."""
    met: dict[str, Passage] = {}
    for passage in (hit.passage for search in searches for hit in search.hits):
        met.setdefault(passage.id, passage)
    for passage in (passage for visit in visits for passage in visit.passages):
        met.setdefault(passage.id, passage)
    return met


OBSERVATION_CHARS = 600
"""Characters of an observation in plain text; HTML has all of it, folded."""


class Utterance(NamedTuple):
    """One segment as a reader sees it."""

    speaker: str
    text: str
    is_agent: bool


def utterances(trajectory: Trajectory) -> Iterator[Utterance]:
    """The segments after the prompt; turns of the agent are numbered from 1."""
    turn = 0
    for segment in trajectory.segments[1:]:
        is_agent = bool(segment.author == "agent")
        turn += is_agent
        speaker = f"agent, turn {turn}" if is_agent else segment.tag or "environment"
        yield Utterance(speaker, segment.text.strip(), is_agent)


def outcome(trajectory: Trajectory) -> str:
    """One line: the answer, whether it is right, the searches, and why the run ended."""
    answer = "no answer" if trajectory.answer is None else f"answer {trajectory.answer!r}"
    golds = trajectory.question.answers
    verdict = ("right; " if trajectory.exact_match else "wrong; ") if answers.can_match(golds) else ""
    right = f" ({verdict}gold: {' | '.join(golds)})" if golds else ""
    searches = trajectory.searches_made
    detail = f": {trajectory.stop_detail}" if trajectory.stop_detail else ""
    return f"{answer}{right}, {searches} search{'' if searches == 1 else 'es'}, ended by {trajectory.stop}{detail}"


def as_text(trajectory: Trajectory) -> str:
    """Question, turns, observations (long ones cut) and outcome, a blank line between them."""
    parts = [f"question: {trajectory.question.question.strip()}"]
    for utterance in utterances(trajectory):
        text = utterance.text
        if not utterance.is_agent and len(text) > OBSERVATION_CHARS:
            text = f"{text[:OBSERVATION_CHARS].rstrip()} … ({len(text) - OBSERVATION_CHARS:,} more characters)"
        parts.append(f"[{utterance.speaker}]\n{text}")
    return "\n\n".join([*parts, f"[end] {outcome(trajectory)}"])


_AGENT, _OTHER = "border-left:3px solid #3b7ddd;padding-left:.6em", "color:#666;padding-left:.75em"


def as_html(trajectory: Trajectory) -> str:
    """The same for a notebook; observations are folded."""
    parts = [f"<p><b>{escape(trajectory.question.question.strip())}</b></p>"]
    for utterance in utterances(trajectory):
        text = f'<div style="white-space:pre-wrap">{escape(utterance.text)}</div>'
        name = escape(utterance.speaker)
        if utterance.is_agent:
            parts.append(f'<div style="{_AGENT}"><small>{name}</small>{text}</div>')
        else:
            parts.append(f'<details style="{_OTHER}"><summary>{name}</summary>{text}</details>')
    return f"<div>{''.join(parts)}<p><small>{escape(outcome(trajectory))}</small></p></div>"
