"""Valid: 1 when the run has the protocol's form, else 0. As a gate with exact_match it is QAgent's first stage."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartOptions


class ValidOptions(PartOptions):
    """Validity is the protocol's own; there is nothing to set."""


def reward(trajectory: Trajectory, options: ValidOptions) -> float:
    """𝕀[format], as the grammar that made the run judged it."""
    return float(trajectory.valid)
