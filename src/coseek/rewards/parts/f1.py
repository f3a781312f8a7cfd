"""F1: word overlap of the answer with the closest gold answer, in [0, 1]."""

from coseek.data import answers
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, needs_answers

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """Word F1, best over the gold answers; yes and no score 1 or 0 (see `data.answers.f1`)."""
    return answers.f1(trajectory.answer, needs_answers(trajectory, "f1"))
