"""Question: what an agent is asked, with its gold answers and gold passages."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coseek.data.errors import DataError
from coseek.data.files import Json, JsonObject, read_jsonl, write_jsonl


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
        """Read a row of `questions.<split>.jsonl`; `golden_answers` is read as `answers`."""
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
        return cls(
            id=str(row["id"]),
            question=str(row["question"]),
            answers=tuple(str(answer) for answer in answers),
            gold_ids=tuple(str(ident) for ident in gold_ids),
            hops=hops,
            meta=meta,
        )


def load_questions(path: Path) -> list[Question]:
    """Read `questions.<split>.jsonl`; no questions and repeated ids are refused."""

    def rows() -> Iterator[Question]:
        for line, row in read_jsonl(path):
            try:
                yield Question.from_json(row)
            except DataError as error:
                raise DataError(f"{path}, line {line}: {error}") from None

    questions = list(rows())
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
