"""Retrieval: the format reward plus λr if the answer was retrieved but not given (Search-R1 empirical study, eq. 4)."""

from typing import Literal

from pydantic import Field

from coseek.data.answers import substring_match
from coseek.data.trajectory import Trajectory
from coseek.measure.retrieval import answer_hit, served
from coseek.rewards.parts import format as form


class RetrievalSettings(form.FormatSettings):
    """The format reward's settings, and λr."""

    lambda_r: float = Field(default=0.1, ge=0, le=1)
    """λr: added if the answer is wrong, the format valid, and a retrieved passage contains a gold answer."""
    match: Literal["substring", "words"] = "substring"
    """How a passage contains it: anywhere (as in the paper; a gold answer such as "no" is then found in almost any
    text), or as whole words."""


SETTINGS = RetrievalSettings


def reward(trajectory: Trajectory, settings: RetrievalSettings) -> float:
    """Eq. 3, and λf + λr if wrong ∧ valid ∧ a retrieved passage contains a gold answer. A partly right answer (outcome
    f1) earns λr for the rest."""
    wrong = 1.0 - form.accuracy(trajectory, settings, "retrieval")
    base = form.reward(trajectory, settings)
    return base + wrong * settings.lambda_r if wrong and trajectory.valid and _is_found(trajectory, settings) else base


def _is_found(trajectory: Trajectory, settings: RetrievalSettings) -> bool:
    if settings.match == "words":
        return answer_hit(trajectory)
    texts = (f"{passage.title} {passage.text}" for passage in served(trajectory))
    return any(substring_match(text, trajectory.question.answers) for text in texts)
