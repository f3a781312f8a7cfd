"""My part: 1 for a short answer, less for a longer one, 0 from `most` words on."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings


class SETTINGS(PartSettings):
    """What a recipe may set besides `weight` and `gate`."""

    most: int = 20
    """Words from which nothing is paid."""


def reward(trajectory: Trajectory, settings: SETTINGS) -> float:
    """Pay one finished run. A pure function: a resumed training scores again."""
    words = len((trajectory.answer or "").split())
    return max(0.0, 1 - words / settings.most) if words else 0.0
