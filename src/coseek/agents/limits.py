"""Limits: the budgets of a run."""

from pydantic import Field

from coseek.core.settings import Settings


class Limits(Settings):
    """Budgets of a run (settings of the run, not of the protocol)."""

    max_turns: int = Field(default=4, ge=0)
    """Searches the agent may make; one more ends the run with `turn_limit`. The search that a protocol opens with is
    not counted; several queries in one turn are one; opening a document and trying again are one each."""
    passages_per_search: int = Field(default=3, ge=1)
    """Top-k shown for each search."""
    max_turn_tokens: int = Field(default=500, ge=1)
    """Tokens the agent may write in one turn; a longer turn ends the run with `token_limit`."""
    max_observation_tokens: int = Field(default=500, ge=1)
    """Tokens of documents in one observation, an equal share for each document; of one page of an opened document."""
    max_tokens: int = Field(default=4096, ge=1)
    """Tokens of the whole episode, prompt and observations included."""
