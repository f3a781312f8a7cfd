"""Cover match: 1 if the answer contains a gold answer as whole words (cover-EM), else 0."""

from coseek.data import answers
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, needs_answers

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """𝕀[a normalised gold answer is a run of words in the normalised answer].

    Unlike strict EM, it rewards long answers that list many candidates.
    """
    return float(answers.cover_match(trajectory.answer, needs_answers(trajectory, "cover_match")))
