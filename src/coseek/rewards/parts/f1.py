"""F1: how many words the answer shares with the nearest gold answer, in [0, 1]."""

from coseek.data.trajectory import Trajectory
from coseek.measure import answers
from coseek.rewards.reward import PartOptions, needs_answers


class F1Options(PartOptions):
    """F1 has nothing of its own to set."""


def reward(trajectory: Trajectory, options: F1Options) -> float:
    """Word F1, best over the gold answers; yes and no are all or nothing (see `measure.answers.f1`)."""
    return answers.f1(trajectory.answer, needs_answers(trajectory, "f1"))
