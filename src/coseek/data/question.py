"""Question: what an agent is asked, with its gold answers and gold passages."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, parse_rows, write_jsonl
from coseek.core.strict_json import is_deep
from coseek.data.passage import DEEPEST_META, read_id

ANSWERS = {"answers", "golden_answers"}
"""Either holds the gold answers."""
KEYS = {"id", "question", "gold_ids", "hops", "meta"} | ANSWERS
"""Keys that are read."""
UNANSWERABLE = "unanswerable"
"""Key of a question's `meta`: true where the corpus lacks a passage that the answer needs."""
NEAR = 0.85
"""difflib ratio from which an unknown key counts as misspelt: `answer` does, `metadata` does not."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question; any one of `answers` is right, and all of `gold_ids` are the supporting passages."""

    id: str
    question: str
    answers: tuple[str, ...] = ()
    gold_ids: tuple[str, ...] = ()
    hops: int | None = None
    """How many facts must be chained; `None` when the data set does not say."""
    meta: dict[str, Json] = field(default_factory=dict)

    @property
    def answerable(self) -> bool:
        """False for a question that is marked as having no answer in its corpus. One without gold answers and without
        the mark may have an answer that nobody wrote down."""
        return self.meta.get(UNANSWERABLE) is not True

    @property
    def dataset(self) -> str | None:
        """The data set that the question is of, where it says so."""
        name = self.meta.get("dataset", self.meta.get("data_source"))  # rows of Search-R1 call it data_source
        return None if name is None else str(name)

    @property
    def kind(self) -> str | None:
        """The type of the question, where it says so."""
        kind = self.meta.get("kind", self.meta.get("type"))  # HotpotQA and 2Wiki call it type
        return None if kind is None else str(kind)

    def to_json(self) -> JsonObject:
        row: JsonObject = {"id": self.id, "question": self.question, "answers": list(self.answers)}
        if self.gold_ids:
            row["gold_ids"] = list(self.gold_ids)
        if self.hops is not None:
            row["hops"] = self.hops
        if self.meta:
            row["meta"] = self.meta
        return row

    @classmethod
    def from_json(cls, row: JsonObject) -> "Question":
        """Read a row of `questions.<split>.jsonl`; `golden_answers` is read as `answers`.

        A question marked as unanswerable has no gold answers, whatever the row says. Unknown keys are ignored, except
        near misses of a missing key. Raises `DataError`.
        """
        lacking = KEYS - row.keys() - (ANSWERS if row.keys() & ANSWERS else set())
        for odd in row.keys() - KEYS:
            for meant in difflib.get_close_matches(odd.lower(), sorted(lacking), n=1, cutoff=NEAR):
                raise DataError(f"a question has no {odd!r}; did you mean {meant!r}?")
        for needed in ("id", "question"):
            if needed not in row:
                raise DataError(f"a question needs {needed!r}")
        answers = row.get("answers", row.get("golden_answers", []))
        gold_ids = row.get("gold_ids") or []
        hops = row.get("hops")
        meta = row.get("meta") or {}
        if not isinstance(answers, list) or not isinstance(gold_ids, list) or not isinstance(meta, dict):
            raise DataError(f"question {row['id']!r}: answers and gold_ids are lists, meta is an object")
        if hops is not None and not isinstance(hops, int):
            raise DataError(f"question {row['id']!r}: hops is a whole number, not {hops!r}")
        if is_deep(meta, DEEPEST_META):
            raise DataError(f"question {row['id']!r}: meta is nested more than {DEEPEST_META} deep; flatten it")
        ident, question = read_id(row), row["question"]
        if not isinstance(question, str):
            raise DataError(f"question {ident!r}: the question is a text, not {question!r}")
        golds = tuple(_said(answer, "an answer", ident) for answer in answers)
        return cls(
            id=ident,
            question=question,
            answers=() if meta.get(UNANSWERABLE) is True else golds,
            gold_ids=tuple(_said(gold, "a gold id", ident) for gold in gold_ids),
            hops=hops,
            meta=meta,
        )


def _said(value: Json, what: str, ident: str) -> str:
    """A text; numbers (years, ids) are read as texts."""
    if isinstance(value, str | int | float):
        return str(value)
    raise DataError(f"question {ident!r}: {what} is a text, not {value!r}")


def load_questions(path: Path) -> list[Question]:
    """Read `questions.<split>.jsonl`; refuses an empty file and repeated ids."""
    questions = list(parse_rows(path, Question.from_json))
    if not questions:
        raise DataError(f"{path} holds no questions; it needs at least one line")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f"{path} has the question id {question.id!r} twice; ids must be unique")
        seen.add(question.id)
    return questions


def save_questions(path: Path, questions: Iterable[Question]) -> None:
    write_jsonl(path, (question.to_json() for question in questions))
