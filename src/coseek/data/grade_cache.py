"""Grades that a generator or judge gave to the trajectories of a run, in a JSONL file in the run's folder.

The first line describes the grader; each later line is an entry, appended as soon as it is known. A stored run can be
scored again without a model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Generic, Protocol, Self, TypeVar

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, atomic_write, json_line, parse_row
from coseek.core.lock import lock_beside
from coseek.core.record import OMIT_EMPTY, Record
from coseek.data.digests import digest
from coseek.data.run import drop_partial_line, whole_lines

SCHEMA = 1
"""Version of the file, in its first line."""
FILE_NAMES = {"GeneratedAnswer": "reply"}
"""File names that differ from the entry's class, so that files written by 0.2 are still found."""


@dataclass(frozen=True, slots=True)
class GeneratedAnswer(Record):
    """A generator's answer from one trajectory's passages."""

    question_id: str
    seed: int
    """Seed of the trajectory."""
    context: str
    """Digest of the generator's input."""
    answer: str | None
    """`None` if the text holds no answer, or for a fault."""
    text: str = ""
    """The generator's whole output."""
    fault: str | None = None
    """Why there is no text."""
    passage_ids: tuple[str, ...] = ()
    """The passages of the context, in order."""
    context_tokens: int = 0
    """Number of tokens of their titles and texts."""
    asked: Annotated[str, OMIT_EMPTY] = ""
    """Digest of the question, for baselines, which are looked up without a context; else empty."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, str(self.seed), self.context, self.asked


@dataclass(frozen=True, slots=True)
class Verdict(Record):
    """A judge's verdict on one response to one question."""

    question_id: str
    response: str
    right: bool | None
    """`None` for a fault, such as an unreadable verdict."""
    text: str = ""
    """The judge's whole output."""
    fault: str | None = None
    asked: Annotated[str, OMIT_EMPTY] = ""
    """Digest of the question and its gold answers; empty in older files."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, self.response, self.asked


class GradeEntry(Protocol):
    """A line of a grade file."""

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies what is graded. If two lines have the same key, the later one counts."""
        ...

    @property
    def fault(self) -> str | None: ...

    def to_json(self) -> JsonObject: ...

    @classmethod
    def from_json(cls, record: JsonObject) -> Self: ...


E = TypeVar("E", bound=GradeEntry)


@dataclass(frozen=True)
class GradeCache(Generic[E]):
    """The grade file of one grader."""

    path: Path
    kind: type[E]
    identity: str
    """Digest of the grader."""
    card: JsonObject
    """Description of the grader for people."""

    @classmethod
    def beside(cls, folder: Path, kind: type[E], identity: str, card: JsonObject) -> "GradeCache[E]":
        """The grade file of a grader in a run's folder, named by the grader's identity."""
        name = FILE_NAMES.get(kind.__name__, kind.__name__.lower())
        return cls(folder / f"{name}.{digest(identity)[:16]}.jsonl", kind, identity, card)

    def entries(self) -> dict[tuple[str, ...], E]:
        """All entries by key; empty without a file. Takes no lock: another process may be appending."""
        entries: dict[tuple[str, ...], E] = {}
        for number, (where, _, _, row) in enumerate(whole_lines(self.path)):
            if number:
                entry = parse_row(row, self.kind.from_json, where)
                entries[entry.key] = entry
            elif row.get("schema") != SCHEMA or row.get("identity") != self.identity:
                raise DataError(f"{where}: another part wrote this sheet; delete the file to write it again")
        return entries

    @contextmanager
    def appending(self) -> Iterator[IO[str]]:
        """Open the file for appending, locked; drops a partial last line."""
        with lock_beside(self.path):
            if not self.path.exists():
                with atomic_write(self.path) as file:
                    file.write(json_line({"schema": SCHEMA, "identity": self.identity, "by": self.card}))
            drop_partial_line(self.path)
            with self.path.open("a", encoding="utf-8") as file:
                yield file

    @staticmethod
    def append(file: IO[str], entry: GradeEntry) -> None:
        file.write(json_line(entry.to_json()))
        file.flush()
