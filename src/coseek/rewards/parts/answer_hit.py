"""Answer hit: 1 when a gold answer stands in what was retrieved, else 0."""

from coseek.data.trajectory import Trajectory
from coseek.measure import retrieval
from coseek.rewards.reward import PartOptions, needs_answers


class AnswerHitOptions(PartOptions):
    """There is nothing of its own to set."""


def reward(trajectory: Trajectory, options: AnswerHitOptions) -> float:
    """𝕀[a gold answer is a run of words in a retrieved passage].

    QAgent's Hit looks at the agent's own text too, which pays for writing the answer down; this one does not.
    """
    needs_answers(trajectory, "answer_hit")
    return float(retrieval.answer_hit(trajectory))
