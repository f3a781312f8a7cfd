"""Answer hit: 1 if a retrieved passage contains a gold answer, else 0."""

from coseek.data.trajectory import Trajectory
from coseek.measure import retrieval
from coseek.rewards.reward import PartSettings, needs_answers

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """𝕀[a gold answer is a run of words in a retrieved passage].

    QAgent's Hit also searches the agent's text, which rewards writing the answer down.
    """
    needs_answers(trajectory, "answer_hit")
    return float(retrieval.answer_hit(trajectory))
