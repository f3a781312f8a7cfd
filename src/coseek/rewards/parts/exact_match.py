"""Exact match: 1 if the whole answer equals a gold answer (strict EM), else 0."""

from coseek.data import answers
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, needs_answers

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """𝕀[normalised answer = a normalised gold answer]. A run without an answer is never right."""
    return float(answers.exact_match(trajectory.answer, needs_answers(trajectory, "exact_match")))
