"""Writer: an agent that needs no model. It reads what was found so far and makes the next move.

Demonstrations and rule-based agents are writers; the driver lets the protocol put a move into words and the
tokenizer of the policy put the words into ids, so a writer's trajectory is an ordinary trajectory.
"""

import random
from dataclasses import dataclass
from typing import Protocol

from coseek.models.model import SoFar


@dataclass(frozen=True, slots=True)
class Move:
    """What an agent does in one turn: think, then either search or answer."""

    thought: str
    queries: tuple[str, ...] = ()
    answer: str | None = None

    def __post_init__(self) -> None:
        if bool(self.queries) == (self.answer is not None):
            raise ValueError("a move either searches or answers")


class Writer(Protocol):
    """Makes one move from the question and the searches so far."""

    def write(self, so_far: SoFar, rng: random.Random) -> Move:
        """The next move. `rng` is seeded by the row and the turn, so a resumed run writes the same."""
        ...
