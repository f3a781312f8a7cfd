"""Accuracy: when somebody else's answer is right, for rewards that pay for what a generator makes of a run."""

from typing import Literal, TypeAlias

from coseek.data.question import Question
from coseek.measure import answers
from coseek.rewards.grades import Grades, Need

Accuracy: TypeAlias = Literal["gen_acc", "cover_match", "exact_match", "judge"]
"""004, table 5 compares these four (GenAcc, Span, EM, LLMJudge)."""


def needs_of(accuracy: Accuracy) -> tuple[Need, ...]:
    """GenAcc needs a judge too: a span that is not found settles nothing."""
    return ("judge",) if accuracy in ("gen_acc", "judge") else ()


def left_to_judge(accuracy: Accuracy, question: Question, response: str | None) -> bool:
    """Whether words do not settle it, so that a judge has to."""
    return accuracy == "judge" or (accuracy == "gen_acc" and not answers.cover_match(response, question.answers))


def is_right(accuracy: Accuracy, question: Question, response: str | None, said: Grades) -> bool:
    """`cover_match`: a gold answer stands in the response; `exact_match`: it is the response; `judge`: the judge says
    yes; `gen_acc`: `cover_match`, and where that fails the judge (004, eq. 3). No answer is never right."""
    if accuracy == "exact_match":
        return answers.exact_match(response, question.answers)
    if accuracy == "cover_match":
        return answers.cover_match(response, question.answers)
    return not left_to_judge(accuracy, question, response) or said.right(response)
