"""GenAcc: 1 if the answer contains a gold answer, or a judge accepts it (s3)."""

from typing import Literal

from coseek.data.answers import cover_match, span_match
from coseek.data.trajectory import Trajectory
from coseek.rewards.grades import Grades, Need, undecided
from coseek.rewards.reward import PartSettings, PartValue, needs_answers


class GenAccSettings(PartSettings):
    """The graded answer, and how it is matched."""

    of: Literal["component", "own"] = "component"
    """The frozen generator's answer from the run's passages, or the agent's own."""
    span: Literal["cover_match", "span_match"] = "cover_match"
    """How a gold answer is matched: as words, or as the tokens of s3's program."""


SETTINGS = GenAccSettings


def needs(settings: GenAccSettings) -> tuple[Need, ...]:
    """A judge, and the generator unless the agent's own answer is graded."""
    return ("judge",) if settings.of == "own" else ("component", "judge")


def to_judge(trajectory: Trajectory, settings: GenAccSettings, grades: Grades) -> list[str]:
    """The graded answer, if it has no matching span."""
    response = trajectory.answer if settings.of == "own" else grades.written
    return undecided("gen_acc" if settings.span == "cover_match" else "gen_acc_span", trajectory.question, response)


def reward(trajectory: Trajectory, settings: GenAccSettings, grades: Grades) -> PartValue:
    """span ∨ judge (s3, eq. 3). The judge is called and logged only for answers without a matching span, and for all
    answers to a question that only the judge decides (`Question.judge_only`)."""
    golds = needs_answers(trajectory, "gen_acc", judged=True)
    response = trajectory.answer if settings.of == "own" else grades.component_answer()
    span = (cover_match if settings.span == "cover_match" else span_match)(response, golds)
    if span and not trajectory.question.judge_only:
        return PartValue(1.0, {"span": 1.0})
    judged = float(trajectory.question.answerable and grades.right(response))
    return PartValue(judged, {"span": 0.0, "judge": judged})
