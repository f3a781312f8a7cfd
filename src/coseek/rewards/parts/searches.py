"""Searches: how many searches the run made. Give it a negative weight and looking things up has a price."""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings


class SearchesSettings(PartSettings):
    """What a search costs starts after the free ones."""

    free: int = Field(default=0, ge=0)
    """Searches that are not counted."""


SETTINGS = SearchesSettings


def reward(trajectory: Trajectory, settings: SearchesSettings) -> float:
    """max(0, searches − free)."""
    return float(max(0, len(trajectory.searches) - settings.free))
