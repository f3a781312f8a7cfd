"""Search turn: one search of a finished trajectory, as label makers see it."""

from collections.abc import Iterator
from dataclasses import dataclass

from coseek.agents.protocol import Protocol
from coseek.agents.search_queries import replay_queries
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.labels.label_set import TurnId
from coseek.retrieval.query import Query


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


def search_turns(trajectory: Trajectory, protocol: Protocol) -> Iterator[SearchTurn]:
    """Every search of a run in order, but for those that failed: nobody knows what they would have found."""
    for place, query in enumerate(replay_queries(trajectory, protocol)):
        if trajectory.searches[place].fault is None:
            yield SearchTurn(trajectory, place, query)
