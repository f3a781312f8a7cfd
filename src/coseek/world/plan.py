"""Plan: the steps that lead to a question's answer, each one fact of one passage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.record import Record
from coseek.data.question import PathStep, Question, gold_path
from coseek.world.passages import spaced


@dataclass(frozen=True, slots=True)
class Step(Record):
    """One fact of a question's plan."""

    entity: str
    """Title of the entity of the fact."""
    mention: str
    """The entity's name in the question, or in the passage of the step before."""
    word: str
    """The entity's kind or occupation: `film`, `painter`, …"""
    relation: str
    gold_id: str
    """The passage that states the fact."""
    sub_answer: str
    """The value as that passage writes it."""
    sub_question: str
    rest: str = ""
    """The question once this step is known: with the value in the place of what it answers. Of compositions alone."""


def has_plan(question: Question) -> bool:
    """Whether a plan is known."""
    return bool(question.meta.get("plan") or gold_path(question))


def plan_of(question: Question) -> tuple[Step, ...]:
    """The plan of a laptop world's question, or the gold path of another, whose steps have a phrase for a relation and
    no word. Raises `DataError` for a question with neither."""
    if path := gold_path(question):
        return _steps_along(path)
    rows = question.meta.get("plan")
    if not isinstance(rows, list) or not rows:
        raise DataError(
            f"question {question.id!r} has no plan; only questions of `coseek world make` and `coseek data synthesize` "
            "and imported 2wiki questions have one"
        )
    return tuple(Step(**{name: str(value) for name, value in cast(JsonObject, row).items()}) for row in rows)


def _steps_along(path: Sequence[PathStep]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for before, one in zip((None, *path), path, strict=False):
        known = before.written if before and before.target == one.source else one.source
        steps.append(
            Step(
                entity=one.source,
                mention=known,
                word="",
                relation=one.phrase.replace(" … ", " "),
                gold_id=one.passage,
                sub_answer=one.written,
                sub_question=one.question.replace(one.source, known, 1),
                rest=spaced(one.rest.replace(one.target, one.written, 1)) if one.rest else "",
            )
        )
    return tuple(steps)


def kind_of(question: Question) -> str:
    """`composition`, `comparison` or `constraint`; empty for questions of no laptop world."""
    return str(question.meta.get("kind", ""))


def constraints_of(question: Question) -> list[JsonObject]:
    """`relation` and `value` of each constraint; empty for other questions."""
    rows = question.meta.get("constraints", [])
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def wanted(question: Question, step: Step) -> str:
    """What a step looks up, in words: `the RELATION of NAME`, the kind with its two values, or a step's own question
    where a plan is a gold path."""
    if not step.word:
        return step.sub_question
    if kind_of(question) == "constraint":
        values = " and ".join(f"{row['relation']} {row['value']}" for row in constraints_of(question))
        return f"the {step.relation} with {values}"
    return f"the {step.relation} of {step.mention}"


def answer_of(question: Question, last: Step) -> str:
    """The answer as the last step writes it, or the question's own where its path leads elsewhere: one that compares
    asks for none of the names that its path leads to."""
    if last.word or not question.answers or last.sub_answer in question.answers:
        return last.sub_answer
    return question.answers[0]
