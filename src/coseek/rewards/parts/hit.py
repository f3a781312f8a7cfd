"""Hit: 1 when a gold answer stands anywhere in the run (QAgent), or only in what was retrieved."""

from collections.abc import Iterator
from typing import Literal

from coseek.data.trajectory import PROMPT, Trajectory
from coseek.measure.answers import cover_match
from coseek.measure.retrieval import answer_hit
from coseek.rewards.reward import PartSettings, needs_answers

_MARKUP = str.maketrans(dict.fromkeys('<>{}[]"', " "))
"""Would else be dropped by normalising, and `<answer>Velora</answer>` be one word."""


class HitSettings(PartSettings):
    """Where the gold answer may stand."""

    variant: Literal["paper", "code", "documents"] = "paper"
    """`paper` and `code`: anywhere behind the prompt, the agent's own words included, so that writing the answer down
    is paid as finding it is. `documents`: in a retrieved passage only."""


SETTINGS = HitSettings


def reward(trajectory: Trajectory, settings: HitSettings) -> float:
    """𝕀[a gold answer is a run of words in one stretch of the run, or in a retrieved passage] (001, eq. 10).

    The prompt does not count: it holds the question, and with it the answer to "which of the two".
    """
    golds = needs_answers(trajectory, "hit")
    if settings.variant == "documents":
        return float(answer_hit(trajectory))
    return float(answer_hit(trajectory) or any(cover_match(text, golds) for text in _written(trajectory)))


def _written(trajectory: Trajectory) -> Iterator[str]:
    """Stretch by stretch, so that no answer is put together across two of them."""
    return (segment.text.translate(_MARKUP) for segment in trajectory.segments if segment.tag != PROMPT)
