"""Turns: what a retriever is told of a search turn. Made in one place, while a run happens and from a finished one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from coseek.agents.grammar import Action, Grammar
from coseek.agents.protocol import Protocol
from coseek.core.files import JsonObject
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Trajectory
from coseek.retrieval.query import PastTurn, Query


@dataclass(frozen=True, slots=True)
class TurnId:
    """Which search of which trajectory."""

    question_id: str
    seed: int
    """Of the trajectory; with the question's id it says which."""
    search: int
    """Place in `Trajectory.searches`, from 0."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, str(self.seed), str(self.search)

    def to_json(self) -> JsonObject:
        return {"question_id": self.question_id, "seed": self.seed, "search": self.search}

    @classmethod
    def from_json(cls, row: JsonObject) -> "TurnId":
        """Read out of any row that names a turn."""
        return cls(str(row["question_id"]), cast(int, row["seed"]), cast(int, row["search"]))


@dataclass(frozen=True, slots=True)
class SearchTurn:
    """One search, and the whole run around it."""

    trajectory: Trajectory
    search: int
    """Place in `trajectory.searches`, from 0."""
    query: Query
    """What the retriever was asked."""

    @property
    def id(self) -> TurnId:
        return TurnId(self.question.id, self.trajectory.seed, self.search)

    @property
    def question(self) -> Question:
        return self.trajectory.question


def make_query(question: Question, history: Sequence[PastTurn], text: str, written: str, grammar: Grammar) -> Query:
    """The query `text` as a retriever is asked it.

    `history` holds the searches of the run's earlier turns, `written` all that the agent wrote in this turn (nothing,
    for a search that the environment opens the run with).
    """
    return Query(text, question.question, reasoning_of(grammar, written), tuple(history))


def make_past_turn(query: Query, search: Search) -> PastTurn:
    """A search that has happened, as later turns look back on it."""
    return PastTurn(query.text, query.reasoning, tuple(hit.passage.contents for hit in search.hits))


def reasoning_of(grammar: Grammar, written: str) -> str:
    """What stands in front of the query of a turn, without tags; selections and flags are no reasoning."""
    before: list[str] = []
    for span in grammar.parse(written):
        action = grammar.action_of(span)
        if action is Action.NONE:
            before.append(span.text.strip())
        elif action not in (Action.SELECT, Action.COMPLETE):
            break
    return " ".join(text for text in before if text)


def turn_number(trajectory: Trajectory, place: int, protocol: Protocol) -> int:
    """Which of the agent's turns asked a search, from 1; 0 for the search that opens a run."""
    turn = trajectory.searches[place].turn
    # Runs older than `Search.turn` made one search a turn.
    return place + (not protocol.opens_with_search) if turn is None else turn


def replay_queries(trajectory: Trajectory, protocol: Protocol) -> list[Query]:
    """What the retriever was asked in each of a finished run's searches, in order: equal to what the driver asked."""
    written = ["", *(segment.text for segment in trajectory.segments if segment.author is Author.AGENT)]
    queries: list[Query] = []
    history: list[PastTurn] = []
    turn, before = -1, 0
    for place, search in enumerate(trajectory.searches):
        now = turn_number(trajectory, place, protocol)
        if now != turn:
            turn, before = now, place
        asked = make_query(trajectory.question, history[:before], search.query, written[turn], protocol.grammar)
        queries.append(asked)
        history.append(make_past_turn(asked, search))
    return queries


def search_turns(trajectory: Trajectory, protocol: Protocol) -> Iterator[SearchTurn]:
    """Every search of a run in order, but for those that failed: nobody knows what they would have found."""
    for place, query in enumerate(replay_queries(trajectory, protocol)):
        if trajectory.searches[place].fault is None:
            yield SearchTurn(trajectory, place, query)
