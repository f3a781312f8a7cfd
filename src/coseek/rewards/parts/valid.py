"""Valid: 1 when the run has the protocol's form, else 0. As a gate with exact_match it is QAgent's first stage."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """𝕀[format], as the grammar that made the run judged it."""
    return float(trajectory.valid)
