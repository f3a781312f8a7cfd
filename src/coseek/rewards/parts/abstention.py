"""Abstention: rewards declining a question without an answer, and penalises wrong declines and invented answers."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, PartValue, needs_answers


class AbstentionSettings(PartSettings):
    """Reward of each case. With these values beside `exact_match: 1.0`, declining pays if the question is unanswerable
    with probability u > (a + 0.5) / (a + 2); a: the probability of being right if it is answerable."""

    right_decline: float = 1.0
    """An unanswerable question is declined."""
    wrong_decline: float = -0.5
    """A question that has an answer is declined."""
    invented: float = -0.5
    """An unanswerable question is answered."""


SETTINGS = AbstentionSettings


def reward(trajectory: Trajectory, settings: AbstentionSettings) -> PartValue:
    """The reward of a right decline, a wrong decline or an invented answer.

    0 for any other run: an answer to an answerable question, and an end without an answer or with an empty answer.
    """
    needs_answers(trajectory, "abstention")
    answerable, declined = trajectory.question.answerable, trajectory.declined
    right, wrong = declined and not answerable, declined and answerable
    invented = bool((trajectory.answer or "").strip()) and not answerable
    value = right * settings.right_decline + wrong * settings.wrong_decline + invented * settings.invented
    cases = {"right_decline": right, "wrong_decline": wrong, "invented": invented}
    return PartValue(value, {name: float(applies) for name, applies in cases.items()})
