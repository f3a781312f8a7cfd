"""Limits: the budgets of an episode, and the shape of a group of trajectories."""

from dataclasses import dataclass

from pydantic import Field

from coseek.core.settings import Settings


class Limits(Settings):
    """Budgets of each episode. They are settings of the run, not of the protocol."""

    max_turns: int = Field(default=4, ge=0)
    """Turns that the environment answers; one more ends the run with `turn_limit`. Searches (whatever their number of
    queries), other tool calls and retries count as one turn each; the search that a protocol opens with does not."""
    passages_per_search: int = Field(default=3, ge=1)
    """Top-k shown for each query."""
    opening_passages: int | None = Field(default=None, ge=1)
    """Top-k of the search that opens a run, where the protocol opens with one; null: `passages_per_search`."""
    max_turn_tokens: int = Field(default=500, ge=1)
    """Tokens the agent may write in one turn; a longer turn ends the run with `token_limit`."""
    max_observation_tokens: int = Field(default=500, ge=1)
    """Tokens of the documents in one observation, an equal share per document unless `max_document_tokens` is set; also
    tokens of one page of an opened document, and of one tool result."""
    max_document_tokens: int | None = Field(default=None, ge=1)
    """Tokens of each document in an observation, for any number of queries and documents."""
    max_tokens: int = Field(default=4096, ge=1)
    """Tokens of the whole episode, including prompt and observations."""

    def passages_of(self, turn: int) -> int:
        """Top-k of a search in this turn of the agent; turn 0 is the search that opens a run."""
        opening_count = self.opening_passages if turn == 0 else None
        return opening_count or self.passages_per_search

    def with_passages(self, count: int) -> "Limits":
        """The same limits with top-k `count` for every search, including the opening search."""
        return self.model_copy(update={"passages_per_search": count, "opening_passages": None})


@dataclass(frozen=True, slots=True)
class Tree:
    """The shape of a group whose trajectories fork (`agents/branching.py`)."""

    group_size: int
    """Trajectories of a question."""
    roots: int
    """Number of them that begin at the question."""
