"""Search turns: the queries that a retriever receives, built in the same way during a run and from a stored run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from coseek.agents.episode import make_past_turn
from coseek.agents.grammar import Grammar, Span
from coseek.agents.protocol import Protocol
from coseek.agents.tag import Action
from coseek.core.files import Json, JsonObject
from coseek.core.record import Record
from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.models.written import unmarked
from coseek.retrieval.query import PastTurn, Query


@dataclass(frozen=True, slots=True)
class TurnId(Record):
    """Identifies one search of one trajectory."""

    question_id: str
    seed: int
    """Seed of the trajectory; with the question's id it identifies the trajectory."""
    search: int
    """Index in `Trajectory.searches`, from 0."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, str(self.seed), str(self.search)


class TurnRecord(Record):
    """Base of records of a search turn. The field `turn` is stored as the three fields of `TurnId`."""

    __slots__ = ()

    def _written(self, record: JsonObject) -> JsonObject:
        turn = record.pop("turn")
        assert isinstance(turn, dict)
        return {**turn, **record}

    @classmethod
    def _to_read(cls, record: JsonObject) -> JsonObject:
        return {**record, "turn": cast(Json, TurnId.from_json(record))}


@dataclass(frozen=True, slots=True)
class SearchTurn:
    """One search of a trajectory."""

    trajectory: Trajectory
    search: int
    """Index in `trajectory.searches`, from 0."""
    query: Query
    """The query that the retriever received."""

    @property
    def id(self) -> TurnId:
        return TurnId(self.question.id, self.trajectory.seed, self.search)

    @property
    def question(self) -> Question:
        return self.trajectory.question


def make_query(
    question: Question, history: Sequence[PastTurn], text: str, written: Segment | None, grammar: Grammar
) -> Query:
    """Build the query that a retriever receives.

    `history` holds the searches of earlier turns. `written` is the agent's turn; `None` for the search that opens a
    run. The retriever receives the question's `searched` text.
    """
    reasoning = "" if written is None else reasoning_of(grammar, grammar.read(written))
    return Query(text, question.searched, reasoning, tuple(history))


def reasoning_of(grammar: Grammar, written: Sequence[Span]) -> str:
    """The text before a turn's query, without tags, selections and flags.

    Marks of reasoning are also removed if the protocol has no tag for it (tongyi), as in AgentIR's program.
    """
    texts: list[str] = []
    for span in written:
        action = grammar.action_of(span)
        if action is Action.NONE:
            texts.append(unmarked(span.text).strip())
        elif action not in (Action.SELECT, Action.COMPLETE):
            break
    return " ".join(text for text in texts if text)


def replay_queries(trajectory: Trajectory, protocol: Protocol) -> list[Query]:
    """Rebuild the queries of a stored trajectory's searches in order, as the driver sent them."""
    written_segments = [None, *(segment for segment in trajectory.segments if segment.author is Author.AGENT)]
    queries: list[Query] = []
    history: list[PastTurn] = []
    latest_turn, first = -1, 0  # the latest turn, and the index of its first search
    for index, search in enumerate(trajectory.searches):
        turn = search.turn
        if turn != latest_turn:
            latest_turn, first = turn, index
        query = make_query(trajectory.question, history[:first], search.query, written_segments[turn], protocol.grammar)
        queries.append(query)
        history.append(make_past_turn(query, search, index > first))
    return queries


def search_turns(trajectory: Trajectory, protocol: Protocol) -> Iterator[SearchTurn]:
    """Yield the searches of a trajectory that did not fail, in order."""
    for index, query in enumerate(replay_queries(trajectory, protocol)):
        if trajectory.searches[index].fault is None:
            yield SearchTurn(trajectory, index, query)
