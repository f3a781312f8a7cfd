"""Gold path: the steps that lead to the answer of a question, where it was made from passages (`coseek data
synthesize`) or says its evidence (2WikiMultihopQA)."""

from dataclasses import dataclass
from typing import cast

from coseek.core.files import Json, JsonObject
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
