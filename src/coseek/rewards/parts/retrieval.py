"""Retrieval: the format reward plus λr for a retrieved but not given answer (Search-R1 empirical study, eq. 4)."""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.measure.answers import exact_match
from coseek.measure.retrieval import answer_hit
from coseek.rewards.parts import format as form


class RetrievalSettings(form.FormatSettings):
    """The format reward's settings, and λr."""

    lambda_r: float = Field(default=0.1, ge=0, le=1)
    """λr: added if the answer is wrong, the format valid, and a retrieved passage contains a gold answer."""


SETTINGS = RetrievalSettings


def reward(trajectory: Trajectory, settings: RetrievalSettings) -> float:
    """Eq. 3, and λf + λr if wrong ∧ valid ∧ a retrieved passage contains a gold answer.

    The paper matches substrings. Here whole words of passages are matched, because a short gold answer such as "no" is
    a substring of almost any text.
    """
    base = form.reward(trajectory, settings)
    wrong = not exact_match(trajectory.answer, trajectory.question.answers)
    return base + settings.lambda_r if wrong and trajectory.valid and answer_hit(trajectory) else base
