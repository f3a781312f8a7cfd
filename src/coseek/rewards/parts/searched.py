"""Searched: 1 if the run searched at all, else 0 (R1-Searcher's first stage rewards learning to search)."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """𝕀[at least one search]."""
    return float(bool(trajectory.searches))
