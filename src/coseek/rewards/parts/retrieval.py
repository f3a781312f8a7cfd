"""Retrieval: the format reward, and a little for having found the answer without giving it (002, eq. 4)."""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.measure.answers import exact_match
from coseek.measure.retrieval import answer_hit
from coseek.rewards.parts import format as form


class RetrievalSettings(form.FormatSettings):
    """The format reward's settings, and λr."""

    lambda_r: float = Field(default=0.1, ge=0, le=1)
    """λr: added when the answer is wrong, the form valid and a gold answer stands in a retrieved passage."""


SETTINGS = RetrievalSettings


def reward(trajectory: Trajectory, settings: RetrievalSettings) -> float:
    """Eq. 3, and λf + λr where wrong & valid & the gold answer is in what was retrieved.

    The paper looks for a substring; here it is whole words in passages only, since a substring pays for short golds
    such as "no" in anything.
    """
    base = form.reward(trajectory, settings)
    wrong = not exact_match(trajectory.answer, trajectory.question.answers)
    return base + settings.lambda_r if wrong and trajectory.valid and answer_hit(trajectory) else base
