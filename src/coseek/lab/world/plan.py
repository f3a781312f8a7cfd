"""Readers of a laptop world's questions: kind, constraints, and what a step of the plan looks up."""

from collections.abc import Sequence

from coseek.core.files import JsonObject
from coseek.data.question import Question, Step

LIST = "list"
"""The kind of questions for several names."""


def kind_of(question: Question) -> str:
    """`composition`, `comparison`, `constraint` or `list`; empty for questions of no laptop world."""
    return str(question.meta.get("kind", ""))


def constraints_of(question: Question) -> list[JsonObject]:
    """`relation` and `value` of each constraint; empty for other questions."""
    constraints = question.meta.get("constraints", [])
    rows = constraints if isinstance(constraints, list) else []
    return [row for row in rows if isinstance(row, dict)]


def wanted(question: Question, step: Step) -> str:
    """What a step looks up, in words: `the RELATION of NAME`, the kind with its two values, or the step's own question
    if the plan is a gold path."""
    if not step.word:
        return step.sub_question
    if kind_of(question) == "constraint":
        values = " and ".join(f"{row['relation']} {row['value']}" for row in constraints_of(question))
        return f"the {step.relation} with {values}"
    return f"the {step.relation} of {step.mention}"


def listed(names: Sequence[str]) -> str:
    """`A , B and C`: several names, spaced as in passages."""
    return f"{' , '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def answer_of(question: Question, last: Step) -> str:
    """The answer as the last step writes it, or the question's own answer if its path ends elsewhere: comparisons
    along a gold path ask for another name, and lists for all values."""
    if kind_of(question) == LIST:
        return question.answers[0]
    if last.word or not question.answers or last.sub_answer in question.answers:
        return last.sub_answer
    return question.answers[0]
