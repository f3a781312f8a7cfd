"""Abstention: pays for declining a question that has no answer, and charges for declining or inventing in vain."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, PartValue, needs_answers


class AbstentionSettings(PartSettings):
    """What each case pays. Beside `exact_match: 1.0` and with these values, declining pays where the question is
    unanswerable with probability u > (a + 0.5) / (a + 2); a: the probability of being right if it is answerable."""

    right_decline: float = 1.0
    """An unanswerable question is declined."""
    wrong_decline: float = -0.5
    """A question that has an answer is declined."""
    invented: float = -0.5
    """An unanswerable question is answered."""


SETTINGS = AbstentionSettings


def reward(trajectory: Trajectory, settings: AbstentionSettings) -> PartValue:
    """The pay of a right decline, a wrong decline or an invented answer.

    0 for any other run: an answer to a question that has one, and an end without an answer or with an empty one.
    """
    needs_answers(trajectory, "abstention")
    answerable = trajectory.question.answerable
    right_decline, wrong_decline = trajectory.declined and not answerable, trajectory.declined and answerable
    invented = bool((trajectory.answer or "").strip()) and not answerable
    value = (
        right_decline * settings.right_decline + wrong_decline * settings.wrong_decline + invented * settings.invented
    )
    cases = {"right_decline": right_decline, "wrong_decline": wrong_decline, "invented": invented}
    return PartValue(value, {name: float(is_so) for name, is_so in cases.items()})
