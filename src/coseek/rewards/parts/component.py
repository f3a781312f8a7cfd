"""Component: 1 when a frozen generator answers right from the passages that the run serves, else 0."""

from coseek.data.trajectory import Trajectory
from coseek.rewards.accuracy import Accuracy, is_right, needs_of
from coseek.rewards.grades import Grades, Need
from coseek.rewards.reward import PartSettings, PartValue, needs_answers


class ComponentSettings(PartSettings):
    """When the generator's answer counts as right."""

    accuracy: Accuracy = "cover_match"
    """001, eq. 10 takes the relaxed EM (`cover_match`), since a generator was never taught to answer in few words."""


SETTINGS = ComponentSettings


def needs(settings: ComponentSettings) -> tuple[Need, ...]:
    """The generator, and a judge where the accuracy has one."""
    return ("component", *needs_of(settings.accuracy))


def reward(trajectory: Trajectory, settings: ComponentSettings, said: Grades) -> PartValue:
    """Acc(G(Q, K), A) with K what the run serves: all that it retrieved, or its selection (001, eq. 8–10)."""
    needs_answers(trajectory, "component")
    right = is_right(settings.accuracy, trajectory.question, said.component_answer(), said)
    return PartValue(float(right), said.served())
