"""Exact match: 1 when the whole answer is a gold answer (strict EM), else 0."""

from coseek.data.trajectory import Trajectory
from coseek.measure import answers
from coseek.rewards.reward import PartOptions, needs_answers


class ExactMatchOptions(PartOptions):
    """Strict EM has nothing of its own to set."""


def reward(trajectory: Trajectory, options: ExactMatchOptions) -> float:
    """𝕀[normalised answer = a normalised gold answer]. A run without an answer is never right."""
    return float(answers.exact_match(trajectory.answer, needs_answers(trajectory, "exact_match")))
