"""Searches: number of searches of the run. A negative weight makes them a cost."""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings


class SearchesSettings(PartSettings):
    """Number of searches without cost."""

    free: int = Field(default=0, ge=0)
    """Number of searches that are not counted."""


SETTINGS = SearchesSettings


def reward(trajectory: Trajectory, settings: SearchesSettings) -> float:
    """max(0, searches − free)."""
    return float(max(0, len(trajectory.searches) - settings.free))
