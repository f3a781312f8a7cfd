"""Scripted agent: an agent without a model. It receives the searches and calls so far and returns the next move.

Demonstrators and rule-based agents are scripted agents. The protocol writes the move as text and the tokenizer encodes
it, so a scripted agent's trajectory is an ordinary trajectory.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coseek.core.files import JsonObject
from coseek.data.trajectory import Search
from coseek.models.model import EpisodeState


@dataclass(frozen=True, slots=True)
class Move:
    """What an agent does in one turn: think, then search, call a tool, or answer."""

    thought: str
    queries: tuple[str, ...] = ()
    answer: str | None = None
    """`NOT_FOUND` declines, in the words of any protocol."""
    call: tuple[str, JsonObject] | None = None
    """A tool of the protocol by its name, and the arguments to call it with."""
    selected: tuple[str, ...] | None = None
    """Ids of the passages of the latest block to select, for protocols that select; `None` makes no selection, which
    keeps all of them."""

    def __post_init__(self) -> None:
        if bool(self.queries) + (self.answer is not None) + (self.call is not None) != 1:
            raise ValueError("a move either searches, calls a tool or answers")


class ScriptedAgent(Protocol):
    """Returns moves, one per turn."""

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return the next move. `rng` is seeded by row and turn, so a resumed run writes the same."""
        ...


@runtime_checkable
class Ranks(Protocol):
    """A scripted agent that ranks its evidence."""

    def evidence(self, question: str, searches: Sequence[Search]) -> Sequence[str]:
        """Return the ids of all passages found, best first."""
        ...


@runtime_checkable
class CanConclude(Protocol):
    """A scripted agent that can answer at any time, as protocols without searches need."""

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return a move with an answer."""
        ...
