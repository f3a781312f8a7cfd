"""Format: right answers in a valid format (Search-R1 empirical study, eq. 3)."""

from collections.abc import Callable, Iterable
from typing import Literal

from pydantic import Field

from coseek.data import answers
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, needs_answers


class FormatSettings(PartSettings):
    """Reward of a valid format."""

    lambda_f: float = Field(default=0.2, ge=0, le=1)
    """λf: reward of a valid format without a right answer, and cost of an invalid format with a right answer. Paper:
    0.2 (3B, 14B), 0.4 (7B)."""
    outcome: Literal["em", "f1", "cover"] = "em"
    """Accuracy a of the answer, in [0, 1]: strict EM (as in the paper), word F1 for long answers, or cover-EM. The
    paper trains on long answers (table 6) without a formula for F1. Ours, a(1 − λf) + λf·valid, is eq. 3 for EM."""
    variant: Literal["paper", "code"] = "paper"
    """`code`: as in the published code, a wrong and invalid run earns `answer_found` if it has an answer."""
    answer_found: float = Field(default=0.1, ge=0, le=1)
    """Reward of the `code` variant for an answer that is neither right nor in a valid format."""


SETTINGS = FormatSettings
_OUTCOMES: dict[str, Callable[[str | None, Iterable[str]], float]] = {
    "em": answers.exact_match,
    "f1": answers.f1,
    "cover": answers.cover_match,
}


def reward(trajectory: Trajectory, settings: FormatSettings) -> float:
    """a(1 − λf) + λf·valid: with EM 1 if right and valid, 1 − λf if only right, λf if only valid, else 0 (variant
    `code`: 0.1 with an answer)."""
    right = accuracy(trajectory, settings, "format")
    if trajectory.valid:
        return right + settings.lambda_f * (1.0 - right)  # exactly 1 for a right answer, whatever λf
    if right or settings.variant == "paper":
        return right * (1.0 - settings.lambda_f)
    return settings.answer_found if trajectory.answer is not None else 0.0


def accuracy(trajectory: Trajectory, settings: FormatSettings, part: str) -> float:
    """The answer's accuracy by `settings.outcome`, in [0, 1]. `part` is named in the error for missing gold answers."""
    return float(_OUTCOMES[settings.outcome](trajectory.answer, needs_answers(trajectory, part)))
