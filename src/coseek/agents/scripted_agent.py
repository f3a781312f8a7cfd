"""Scripted agent: an agent that needs no model. It reads what was found so far and makes the next move.

Demonstrations and rule-based agents are scripted agents; the driver lets the protocol put a move into words and the
tokenizer of the policy put the words into ids, so a scripted agent's trajectory is an ordinary trajectory.
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
    call: tuple[str, JsonObject] | None = None
    """A tool of the protocol by its name, and the arguments to call it with."""
    selected: tuple[str, ...] | None = None
    """Ids of the passages of the latest block that are worth keeping, for protocols that select; `None` says nothing,
    which keeps all of them."""

    def __post_init__(self) -> None:
        if bool(self.queries) + (self.answer is not None) + (self.call is not None) != 1:
            raise ValueError("a move either searches, calls a tool or answers")


class ScriptedAgent(Protocol):
    """Makes one move from the question and the searches so far."""

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """The next move. `rng` is seeded by the row and the turn, so a resumed run writes the same."""
        ...


@runtime_checkable
class Ranks(Protocol):
    """A scripted agent that ranks what was found."""

    def evidence(self, question: str, searches: Sequence[Search]) -> Sequence[str]:
        """Ids of all passages found, best first."""
        ...


@runtime_checkable
class CanConclude(Protocol):
    """A scripted agent that can answer at any time from what was found, as a protocol without searches needs."""

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """A move with an answer."""
        ...
