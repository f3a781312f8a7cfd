"""Format: right answers in a valid format (Search-R1 empirical study, eq. 3)."""

from typing import Literal

from pydantic import Field

from coseek.data import answers
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, needs_answers


class FormatSettings(PartSettings):
    """Reward of a valid format."""

    lambda_f: float = Field(default=0.2, ge=0, le=1)
    """λf: reward of a valid format without a right answer, and cost of an invalid one with it. Paper: 0.2 (3B, 14B),
    0.4 (7B)."""
    variant: Literal["paper", "code"] = "paper"
    """`code`: as in the published code, a wrong and invalid run earns `answer_found` if it has an answer."""
    answer_found: float = Field(default=0.1, ge=0, le=1)
    """Reward of the `code` variant for an answer that is neither right nor in a valid format."""


SETTINGS = FormatSettings


def reward(trajectory: Trajectory, settings: FormatSettings) -> float:
    """1 if right and valid, 1 − λf if only right, λf if only valid, else 0 (variant `code`: 0.1 with an answer)."""
    right = answers.exact_match(trajectory.answer, needs_answers(trajectory, "format"))
    if right:
        return 1.0 if trajectory.valid else 1.0 - settings.lambda_f
    if trajectory.valid:
        return settings.lambda_f
    return settings.answer_found if settings.variant == "code" and trajectory.answer is not None else 0.0
