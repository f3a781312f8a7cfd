"""Stored turns: the search turns of a run on disk, of which one trajectory at a time is in memory."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.data.run import Run


@dataclass(frozen=True)
class StoredTurns:
    """The search turns of a run's trajectories for some questions, in their stored order. Can be read several times."""

    run: Run
    protocol: Protocol
    question_ids: Collection[str]

    def __iter__(self) -> Iterator[SearchTurn]:
        for trajectory in self.run.trajectories():
            if trajectory.question.id in self.question_ids:
                yield from search_turns(trajectory, self.protocol)
