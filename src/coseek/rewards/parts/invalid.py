"""Invalid: 1 if the run lacks the protocol's format, else 0. A negative weight makes it a penalty (R1-Searcher)."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """1 − 𝕀[format]."""
    return float(not trajectory.valid)
