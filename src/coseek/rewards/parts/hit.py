"""Hit: 1 if the run (QAgent), or a retrieved passage, contains a gold answer, else 0."""

from collections.abc import Iterator
from typing import Literal

from coseek.data.answers import cover_match
from coseek.data.trajectory import PROMPT, Trajectory
from coseek.measure.retrieval import answer_hit
from coseek.rewards.reward import PartSettings, needs_answers

_MARKUP = str.maketrans(dict.fromkeys('<>{}[]"', " "))
"""Normalisation deletes these characters, which would make `<answer>Velora</answer>` one word."""


class HitSettings(PartSettings):
    """The text that is searched for gold answers."""

    variant: Literal["paper", "code", "documents"] = "paper"
    """`paper` and `code`: everything after the prompt, including the agent's own text, so that writing the answer earns
    as much as finding it. `documents`: retrieved passages only."""


SETTINGS = HitSettings


def reward(trajectory: Trajectory, settings: HitSettings) -> float:
    """𝕀[a gold answer is a run of words in one segment of the run, or in a retrieved passage] (QAgent, eq. 10).

    The prompt is left out: the question may contain the answer ("which of the two").
    """
    golds = needs_answers(trajectory, "hit")
    if settings.variant == "documents":
        return float(answer_hit(trajectory))
    return float(answer_hit(trajectory) or any(cover_match(text, golds) for text in _segment_texts(trajectory)))


def _segment_texts(trajectory: Trajectory) -> Iterator[str]:
    """Texts of the segments, one by one, so that no match spans two of them."""
    return (segment.text.translate(_MARKUP) for segment in trajectory.segments if segment.tag != PROMPT)
