"""Valid: 1 if the run has the protocol's format, else 0. As a gate for exact_match it is QAgent's first stage."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """𝕀[format], as judged by the grammar of the run."""
    return float(trajectory.valid)
