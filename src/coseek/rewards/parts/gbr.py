"""Gain beyond RAG: a frozen generator's accuracy with the run's passages minus that with naive RAG's (s3)."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.grades import Accuracy, Grades, Need, is_right, needs_of, undecided
from coseek.rewards.reward import PartSettings, PartValue, needs_answers


class GbrSettings(PartSettings):
    """When an answer of the generator counts as right, in both terms."""

    accuracy: Accuracy = "gen_acc"
    """s3 uses GenAcc, and compares the others in table 5."""


SETTINGS = GbrSettings


def needs(settings: GbrSettings) -> tuple[Need, ...]:
    """The generator's two answers, and a judge if the accuracy needs one."""
    return ("component", "baseline", *needs_of(settings.accuracy))


def to_judge(trajectory: Trajectory, settings: GbrSettings, grades: Grades) -> list[str]:
    """The generator's two answers, if the accuracy leaves them to a judge."""
    baseline = None if grades.baseline is None else grades.baseline.answer
    return undecided(settings.accuracy, trajectory.question, grades.written, baseline)


def reward(trajectory: Trajectory, settings: GbrSettings, grades: Grades) -> PartValue:
    """Acc(G(Q, D_agent), A) − Acc(G(Q, D_RAG), A), in {−1, 0, 1} (s3, eq. 1).

    At least 0 on questions that naive RAG fails. The published code adds Acc(G(Q, D_agent)): preset `s3-code`.
    """
    needs_answers(trajectory, "gbr", judged=True)
    question = trajectory.question
    agent = float(is_right(settings.accuracy, question, grades.component_answer(), grades))
    rag = float(is_right(settings.accuracy, question, grades.baseline_answer(), grades))
    return PartValue(agent - rag, {"agent": agent, "rag": rag, **grades.served()})
