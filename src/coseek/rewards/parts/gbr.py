"""Gain beyond RAG: what the run's passages are worth to a frozen generator beyond those of one plain search (s3)."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.accuracy import Accuracy, is_right, needs_of
from coseek.rewards.grades import Grades, Need
from coseek.rewards.reward import PartSettings, PartValue, needs_answers


class GbrSettings(PartSettings):
    """When an answer of the generator counts as right, on both sides."""

    accuracy: Accuracy = "gen_acc"
    """004 takes GenAcc, and compares the others in table 5."""


SETTINGS = GbrSettings


def needs(settings: GbrSettings) -> tuple[Need, ...]:
    """The generator twice, and a judge where the accuracy has one."""
    return ("component", "baseline", *needs_of(settings.accuracy))


def reward(trajectory: Trajectory, settings: GbrSettings, said: Grades) -> PartValue:
    """Acc(G(Q, D_agent), A) − Acc(G(Q, D_RAG), A), in {−1, 0, 1} (004, eq. 1).

    Never below 0 on questions that were chosen because naive RAG fails them. The published code pays this plus
    Acc(G(Q, D_agent)): preset `s3-code`.
    """
    needs_answers(trajectory, "gbr")
    question = trajectory.question
    agent = float(is_right(settings.accuracy, question, said.component_answer(), said))
    rag = float(is_right(settings.accuracy, question, said.baseline_answer(), said))
    return PartValue(agent - rag, {"agent": agent, "rag": rag, **said.served()})
