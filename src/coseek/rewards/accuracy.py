"""Accuracy: when a generator's answer counts as right, for rewards of an agent's passages."""

from typing import Literal, TypeAlias

from coseek.data import answers
from coseek.data.question import Question
from coseek.rewards.grades import Grades, Need

Accuracy: TypeAlias = Literal["gen_acc", "gen_acc_span", "cover_match", "span_match", "exact_match", "judge"]
"""s3, table 5 compares four (GenAcc, Span, EM, LLMJudge); those with `span` look for spans as its program does."""
JUDGED = ("gen_acc", "gen_acc_span", "judge")
_SPANS = {"gen_acc": answers.cover_match, "gen_acc_span": answers.span_match}


def needs_of(accuracy: Accuracy) -> tuple[Need, ...]:
    """GenAcc needs a judge too, for answers without a matching span."""
    return ("judge",) if accuracy in JUDGED else ()


def left_to_judge(accuracy: Accuracy, question: Question, response: str | None) -> bool:
    """Whether the judge has to decide, because matching does not. No answer to an unanswerable question is right."""
    if not question.answerable:
        return False
    found = _SPANS.get(accuracy)
    return accuracy == "judge" or (found is not None and not found(response, question.answers))


def is_right(accuracy: Accuracy, question: Question, response: str | None, grades: Grades) -> bool:
    """`cover_match`, `span_match`: the response contains a gold answer; `exact_match`: it equals one; `judge`: the
    judge says yes; `gen_acc`: `cover_match`, and where that fails the judge (s3, eq. 3). A missing answer is never
    right, nor is any to an unanswerable question."""
    if not question.answerable:
        return False
    if accuracy == "exact_match":
        return answers.exact_match(response, question.answers)
    if accuracy == "cover_match":
        return answers.cover_match(response, question.answers)
    if accuracy == "span_match":
        return answers.span_match(response, question.answers)
    return not left_to_judge(accuracy, question, response) or grades.right(response)
