"""Component: 1 if a frozen generator answers correctly from the run's passages, else 0."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.grades import Accuracy, Grades, Need, is_right, needs_of, undecided
from coseek.rewards.reward import PartSettings, PartValue, needs_answers


class ComponentSettings(PartSettings):
    """When the generator's answer counts as right."""

    accuracy: Accuracy = "cover_match"
    """QAgent, eq. 10 uses relaxed EM (`cover_match`), because a generator is not trained to answer in few words."""


SETTINGS = ComponentSettings


def needs(settings: ComponentSettings) -> tuple[Need, ...]:
    """The generator, and a judge if the accuracy needs one."""
    return ("component", *needs_of(settings.accuracy))


def to_judge(trajectory: Trajectory, settings: ComponentSettings, grades: Grades) -> list[str]:
    """The generator's answer, if the accuracy leaves it to a judge."""
    return undecided(settings.accuracy, trajectory.question, grades.written)


def reward(trajectory: Trajectory, settings: ComponentSettings, grades: Grades) -> PartValue:
    """Acc(G(Q, K), A) with K the run's passages: all retrieved passages, or its selection (QAgent, eq. 8–10)."""
    needs_answers(trajectory, "component", judged=True)
    right = is_right(settings.accuracy, trajectory.question, grades.component_answer(), grades)
    return PartValue(float(right), grades.served())
