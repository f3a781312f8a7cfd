"""Answer hit: 1 when a gold answer stands in what was retrieved, else 0."""

from coseek.data.trajectory import Trajectory
from coseek.measure import retrieval
from coseek.rewards.reward import PartSettings, needs_answers

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """𝕀[a gold answer is a run of words in a retrieved passage].

    QAgent's Hit looks at the agent's own text too, which pays for writing the answer down; this one does not.
    """
    needs_answers(trajectory, "answer_hit")
    return float(retrieval.answer_hit(trajectory))
