"""Gold path: the steps that lead to a question's answer, each one fact of one passage.

2Wiki's triples and questions made from passages have one as `meta.path`. A laptop world's questions have theirs as
`meta.plan`, which names relations. `plan_of` reads either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.core.record import Record
from coseek.data.question import Question


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step of a question's path, as its meta tells it."""

    passage: str
    """Id of the passage that states it."""
    source: str
    """The name that it starts from: its title, where it has one."""
    target: str
    """The name that it leads to: its title, where it has one."""
    written: str
    """The target as the passage writes it."""
    phrase: str
    """What the passage says between both; `…` stands for a name within it."""
    back: bool
    """From the value to the subject."""
    question: str
    """The question of this step alone."""
    rest: str
    """What is still asked once this step is known; empty behind the last one."""


def plain_name(title: str) -> str:
    """A title without what it adds in parentheses."""
    return title.partition(" (")[0]


NEEDED = {"passage", "from", "to", "phrase", "back", "question"}
"""Keys of a step, without which a list is some other path."""


def gold_path(question: Question) -> tuple[PathStep, ...]:
    """The path of a question; empty for questions that have none."""
    rows = question.meta.get("path")
    if not isinstance(rows, list) or not all(map(_is_step, rows)):
        return ()
    return tuple(
        PathStep(
            passage=row["passage"],
            source=row["from"],
            target=row["to"],
            written=row.get("written") or row["to"],
            phrase=row["phrase"],
            back=cast(JsonObject, row)["back"] is True,
            question=row["question"],
            rest=row.get("rest") or "",
        )
        for row in cast(list[dict[str, str]], rows)
    )


def _is_step(row: Json) -> bool:
    if not isinstance(row, dict) or "back" not in row:
        return False
    needed = all(isinstance(row.get(name), str) for name in NEEDED - {"back"})
    return needed and all(isinstance(row.get(name), str | None) for name in ("written", "rest"))


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
                rest=f" {one.rest.replace(one.target, one.written, 1)}" if one.rest else "",
            )
        )
    return tuple(steps)
