"""Trajectory and token ledger: one finished question, exactly as sampled; its evidence, and its display as text.

Token truth: the ids are what a model sampled, or text that was tokenised once when it was inserted. A segment's text is
the decoding of its ids, never the other way round.

Evidence: ids of all retrieved passages, each once, best first, for storage, metrics, rewards and generators. Older runs
do not store it: then selected passages come first, in the order of selection, next the others in the order of
retrieval, and last the passages that only a visit showed.
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
COMMON_TAGS = frozenset((PROMPT, RETRY, PAGE, MISSING, TOOL, MESSAGE, LAST_WORD))
"""Tags of environment segments in every protocol: the first prompt, a request to retry after a turn without an action,
a page of a document, a notice that a page is missing, the result of another tool, another message of an imported
conversation, and the request for an answer at a limit. All other environment segments show search results."""


class Author(StrEnum):
    """Author of a segment. Training uses the agent's tokens, never the environment's."""

    AGENT = "agent"
    ENVIRONMENT = "environment"


class StopReason(StrEnum):
    """Why a run ended."""

    ANSWERED = "answered"
    DECLINED = "declined"
    """The agent says that it has no answer, in a form of its protocol's grammar."""
    COMPLETE = "complete"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    INVALID = "invalid"
    RETRIEVER_ERROR = "retriever_error"
    MODEL_ERROR = "model_error"
    TOOL_ERROR = "tool_error"

    @property
    def is_fault(self) -> bool:
        """A part failed, so the run says nothing about the agent: it is counted, not scored."""
        return self in (StopReason.RETRIEVER_ERROR, StopReason.MODEL_ERROR, StopReason.TOOL_ERROR)


@dataclass(frozen=True, slots=True)
class Segment(Record):
    """One stretch of a trajectory by one author."""

    author: Author
    tag: str
    """Kind of segment: `prompt`, `information`, …; for the agent, the tag that ended its turn, or empty."""
    text: str
    """The decoding of `ids`, special tokens included. In logs without token ids, `ids` is empty."""
    ids: TokenIds
    """Exactly what was sampled or inserted; never re-tokenised."""
    logprobs: Annotated[tuple[float, ...], OPTIONAL] = ()
    """Natural log at the sampling temperature, one per agent token; empty for the environment."""
    version: Annotated[int | None, OMIT_NONE] = None
    """Version of the weights that sampled the ids; `None` if unknown."""
    message: Annotated[PlainObject | None, OMIT_NONE] = None
    """The assistant's message parsed from the turn of an agent with native tool calls: `content`, `reasoning_content`
    and `tool_calls`. `None` in all other segments."""

    def __post_init__(self) -> None:
        expected_count = len(self.ids) if self.author is Author.AGENT else 0
        if len(self.logprobs) != expected_count:
            raise DataError(
                f"a segment by the {self.author} holds {len(self.ids)} tokens, which needs {expected_count} "
                f"log-probabilities, and has {len(self.logprobs)}"
            )
        if self.version is not None and self.author is not Author.AGENT:
            raise DataError(f"a version of weights is the agent's alone; the environment's segment has {self.version}")
        if self.message is not None and self.author is not Author.AGENT:
            raise DataError("a segment by the environment holds an assistant's message")

    def _written(self, record: JsonObject) -> JsonObject:
        if self.author is Author.ENVIRONMENT:
            del record["logprobs"]
        return record


@dataclass(frozen=True, slots=True)
class Search(Record):
    """One query and its hits. If the retriever failed, `fault` is set and `hits` is empty."""

    query: str
    hits: tuple[Hit, ...] = ()
    fault: Annotated[str | None, OMIT_NONE] = None
    turn: int = 0
    """The agent's turn that searched, from 1; 0 for the search that opens a run. Searches of one turn were shown in one
    block."""
    selected: Annotated[tuple[str, ...] | None, OMIT_NONE] = None
    """Ids of the hits that the agent chose; `None` if it made no choice, which differs from an empty choice."""


@dataclass(frozen=True, slots=True)
class Call(Record):
    """One call of a tool other than search and visit. If it failed, `fault` is set and `result` is `None`."""

    turn: int
    """The agent's turn that made the call, from 1."""
    tool: str
    """The tool's name, as the agent wrote it."""
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
    """A visit, which shows a retrieved passage with neighbours from its document."""

    turn: int
    """The agent's turn that made the visit, from 1."""
    id: str
    """The requested passage."""
    passages: tuple[Passage, ...]
    """All passages shown, in the order of the document."""

    def shows(self, ident: str) -> bool:
        """Whether the visit showed the passage with this id."""
        return any(passage.id == ident for passage in self.passages)


@dataclass(frozen=True, slots=True)
class Trajectory(Record):
    """One finished question.

    A trajectory is *truncated* if a budget ended it (`turn_limit`, `token_limit`). `seed` is the seed of its own
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
    """Whether the text follows the protocol (the *format* of the papers)."""
    format_error: str = ""
    """Why the format is invalid; empty if it is valid."""
    stop_detail: str = ""
    """What failed, for a fault."""
    selected_ids: tuple[str, ...] = ()
    """The passages that the agent chose as its evidence, each once, in the order of its searches."""
    side_contexts: Annotated[tuple[tuple[Segment, ...], ...], OMIT_EMPTY] = ()
    """Text that the agent's model read and wrote in separate contexts, such as notes on documents: each a prompt and
    one turn. Never trained on. Their results appear in the environment's segments."""
    seed: int = 0
    timings: Mapping[str, Number] = field(default_factory=dict)
    """Seconds by part (`wall_s`, `retriever_s`); wall time, so never compared for equality of runs."""
    exact: Annotated[bool, OMIT_TRUE] = True
    """Whether ids and log-probabilities of the agent are those that were sampled. False if a server returned text only
    (then its ids are that text encoded once, and 0 stands for unknown log-probabilities), and for logs of other
    agents (with ids only if the log has them). Such a run is measured, but never trained on."""
    cost_usd: Annotated[Number | None, OMIT_NONE] = None
    """Price of the model's turns in dollars; `None` if they are free or a part is unknown."""
    calls: Annotated[tuple[Call, ...], OMIT_EMPTY] = ()
    """Calls of tools other than search (see `searches`) and visit (segments with the tag `page`)."""
    evidence: Annotated[tuple[str, ...] | None, OMIT_NONE] = None
    """Ids of all passages that were retrieved or visited, each once, best first (`evidence_of`). `None` in older runs.
    """
    visits: Annotated[tuple[Visit, ...], OMIT_EMPTY] = ()
    """Visits that showed more than the retrieved passage."""
    messages: Annotated[tuple[PlainObject, ...], OMIT_EMPTY] = ()
    """The messages of an imported conversation, in the form of chat completions; empty for runs of coseek."""
    logged_protocol: Annotated[str | None, OMIT_NONE] = None
    """The protocol that an imported log names, if the segments are written in the tags of another one."""

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
        """Start and end in `ids` of each turn of the agent."""
        ends = list(accumulate(len(segment.ids) for segment in self.segments))
        return tuple(
            (end - len(segment.ids), end)
            for segment, end in zip(self.segments, ends, strict=True)
            if segment.author is Author.AGENT
        )

    @property
    def contexts(self) -> tuple[tuple[Segment, ...], ...]:
        """The segments before each turn of the agent."""
        return tuple(
            self.segments[:index] for index, segment in enumerate(self.segments) if segment.author is Author.AGENT
        )

    @property
    def agent_protocol(self) -> str:
        """The protocol that the agent followed."""
        return self.logged_protocol or self.protocol

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids in order."""
        return tuple(chain.from_iterable(segment.ids for segment in self.segments))

    @property
    def has_ids(self) -> bool:
        """Whether the ids of all text are known."""
        return all(segment.ids or not segment.text for segment in self.segments)

    @property
    def agent_mask(self) -> tuple[bool, ...]:
        """For each token of `ids`, whether the agent wrote it."""
        return tuple(segment.author is Author.AGENT for segment in self.segments for _ in segment.ids)

    @property
    def agent_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments if segment.author is Author.AGENT)

    @property
    def truncated(self) -> bool:
        return self.stop in (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)

    @property
    def answered(self) -> bool:
        """Whether there is an answer that is not blank."""
        return bool((self.answer or "").strip())

    @property
    def declined(self) -> bool:
        """Whether the agent declined to answer. False if a generator answered afterwards."""
        return self.stop is StopReason.DECLINED and self.answer is None

    @property
    def fault(self) -> tuple[StopReason, str] | None:
        """The part that failed, and its message. If the fault ended the run, or one of a turn's searches has no result,
        the agent read less than it asked for: the run says nothing about the agent and is not scored."""
        return (self.stop, self.stop_detail) if self.stop.is_fault else _search_fault(self.searches)


def _search_fault(searches: Sequence[Search]) -> tuple[StopReason, str] | None:
    faults = (search.fault for search in searches if search.fault is not None)
    return next(((StopReason.RETRIEVER_ERROR, fault) for fault in faults), None)


def stop_of_decline(searches: Sequence[Search]) -> tuple[StopReason, str]:
    """Stop reason and detail of a run whose agent declines. After a failed search it is a fault, since the retriever
    may be to blame, not the corpus."""
    return _search_fault(searches) or (StopReason.DECLINED, "")


def evidence_of(trajectory: Trajectory) -> tuple[str, ...]:
    """The stored evidence of a run; for runs of older versions, that of `rank_evidence`."""
    evidence = trajectory.evidence
    return (
        rank_evidence(trajectory.searches, trajectory.selected_ids, trajectory.visits) if evidence is None else evidence
    )


def rank_evidence(searches: Sequence[Search], first: Iterable[str], visits: Sequence[Visit] = ()) -> tuple[str, ...]:
    """Ids of the retrieved passages: those of `first` in order, then the others in the order of `met_passages`."""
    passages = met_passages(searches, visits)
    return tuple(dict.fromkeys((*(ident for ident in first if ident in passages), *passages)))


def met_passages(searches: Sequence[Search], visits: Sequence[Visit]) -> dict[str, Passage]:
    """The retrieved passages by id in the order of retrieval, then those that only visits showed."""
    passages: dict[str, Passage] = {}
    hits = (hit.passage for search in searches for hit in search.hits)
    for passage in chain(hits, *(visit.passages for visit in visits)):
        passages.setdefault(passage.id, passage)
    return passages


OBSERVATION_CHARS = 600
"""Maximum number of characters of an observation in plain text. HTML shows all of it, folded."""


class Utterance(NamedTuple):
    """One segment for display."""

    speaker: str
    text: str
    is_agent: bool


def utterances(trajectory: Trajectory) -> Iterator[Utterance]:
    """The segments after the prompt; turns of the agent are numbered from 1."""
    turn = 0
    for segment in trajectory.segments[1:]:
        is_agent = segment.author is Author.AGENT
        turn += is_agent
        speaker = f"agent, turn {turn}" if is_agent else segment.tag or "environment"
        yield Utterance(speaker, segment.text.strip(), is_agent)


def outcome(trajectory: Trajectory) -> str:
    """One line: the answer, whether it is right, the number of searches, and why the run ended."""
    answer = "no answer" if trajectory.answer is None else f"answer {trajectory.answer!r}"
    golds = trajectory.question.answers
    verdict = ("right; " if trajectory.exact_match else "wrong; ") if answers.can_match(golds) else ""
    gold_text = f" ({verdict}gold: {' | '.join(golds)})" if golds else ""
    searches = trajectory.searches_made
    detail = f": {trajectory.stop_detail}" if trajectory.stop_detail else ""
    return f"{answer}{gold_text}, {searches} search{'' if searches == 1 else 'es'}, ended by {trajectory.stop}{detail}"


def as_text(trajectory: Trajectory) -> str:
    """Question, turns, observations (long ones are cut) and outcome, separated by blank lines."""
    parts = [f"question: {trajectory.question.question.strip()}"]
    for utterance in utterances(trajectory):
        text = utterance.text
        if not utterance.is_agent and len(text) > OBSERVATION_CHARS:
            text = f"{text[:OBSERVATION_CHARS].rstrip()} … ({len(text) - OBSERVATION_CHARS:,} more characters)"
        parts.append(f"[{utterance.speaker}]\n{text}")
    return "\n\n".join([*parts, f"[end] {outcome(trajectory)}"])


_AGENT, _OTHER = "border-left:3px solid #3b7ddd;padding-left:.6em", "color:#666;padding-left:.75em"


def as_html(trajectory: Trajectory) -> str:
    """The same as HTML for a notebook; observations are folded."""
    parts = [f"<p><b>{escape(trajectory.question.question.strip())}</b></p>"]
    for utterance in utterances(trajectory):
        text = f'<div style="white-space:pre-wrap">{escape(utterance.text)}</div>'
        name = escape(utterance.speaker)
        if utterance.is_agent:
            parts.append(f'<div style="{_AGENT}"><small>{name}</small>{text}</div>')
        else:
            parts.append(f'<details style="{_OTHER}"><summary>{name}</summary>{text}</details>')
    return f"<div>{''.join(parts)}<p><small>{escape(outcome(trajectory))}</small></p></div>"
