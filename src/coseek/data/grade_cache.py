"""Sheet: what a frozen part said about the trajectories of a run, in a file beside them.

The first line says who wrote it; every later line is an entry. An entry is appended as soon as it is known, so that a
start after a crash does only what is missing. Scoring reads sheets and needs no model: a stored run has the same score
years later.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, Protocol, Self, TypeVar

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, atomic_write, json_line, parse_line
from coseek.core.lock import lock_beside
from coseek.data.run import drop_partial_line

SCHEMA = 1
"""Version of the file, in its first line."""
FILE_NAMES = {"GeneratedAnswer": "reply"}
"""Where a file is not called as its kind of entry is: files of coseek 0.2 are found."""


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """What a generator made of one trajectory's passages."""

    question_id: str
    seed: int
    """Of the trajectory; with the question's id it says which."""
    context: str
    """Digest of what the generator was given: an answer to other passages is not this trajectory's."""
    answer: str | None
    """`None` when nothing that was written is an answer, or when there was a fault."""
    text: str = ""
    """All that the generator wrote."""
    fault: str | None = None
    """Why there is no text: a part failed, which says nothing about the passages."""
    passage_ids: tuple[str, ...] = ()
    """What was shown, in order."""
    context_tokens: int = 0
    """Tokens of titles and texts that were shown."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, str(self.seed), self.context

    def to_json(self) -> JsonObject:
        return {
            "question_id": self.question_id,
            "seed": self.seed,
            "context": self.context,
            "answer": self.answer,
            "text": self.text,
            "fault": self.fault,
            "passage_ids": list(self.passage_ids),
            "context_tokens": self.context_tokens,
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> Self:
        ids, seed, tokens = row["passage_ids"], row["seed"], row["context_tokens"]
        assert isinstance(ids, list) and isinstance(seed, int) and isinstance(tokens, int)
        return cls(
            question_id=str(row["question_id"]),
            seed=seed,
            context=str(row["context"]),
            answer=_text(row, "answer"),
            text=str(row["text"]),
            fault=_text(row, "fault"),
            passage_ids=tuple(map(str, ids)),
            context_tokens=tokens,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge said of one response to one question."""

    question_id: str
    response: str
    right: bool | None
    """`None` for a fault: an unreadable verdict is neither yes nor no."""
    text: str = ""
    """All that the judge wrote."""
    fault: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, self.response

    def to_json(self) -> JsonObject:
        return {
            "question_id": self.question_id,
            "response": self.response,
            "right": self.right,
            "text": self.text,
            "fault": self.fault,
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> Self:
        right = row["right"]
        assert right is None or isinstance(right, bool)
        return cls(str(row["question_id"]), str(row["response"]), right, str(row["text"]), _text(row, "fault"))


class GradeEntry(Protocol):
    """A line of a sheet."""

    @property
    def key(self) -> tuple[str, ...]:
        """What it is about; of two lines about the same, the later one holds."""
        ...

    @property
    def fault(self) -> str | None: ...

    def to_json(self) -> JsonObject: ...

    @classmethod
    def from_json(cls, row: JsonObject) -> Self: ...


E = TypeVar("E", bound=GradeEntry)


@dataclass(frozen=True)
class GradeCache(Generic[E]):
    """The file of one frozen part."""

    path: Path
    kind: type[E]
    identity: str
    """Digest of everything that the entries depend on besides what they are about."""
    card: JsonObject
    """Who wrote it, for people."""

    @classmethod
    def beside(cls, folder: Path, kind: type[E], identity: str, card: JsonObject) -> "GradeCache[E]":
        """The sheet of a part in a run's folder; parts that differ in anything have different ones."""
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return cls(
            folder / f"{FILE_NAMES.get(kind.__name__, kind.__name__.lower())}.{name}.jsonl", kind, identity, card
        )

    def entries(self) -> dict[tuple[str, ...], E]:
        """All entries by key; none when the file is not there yet. Changes nothing: somebody may be appending."""
        return {entry.key: entry for entry in self._lines()}

    def _lines(self) -> Iterator[E]:
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{self.path}, line {number}"
                if not line.endswith(b"\n") and not _is_json(line):
                    return  # the last line, cut short by a kill, or written at this moment
                row = parse_line(line, where)
                if number == 1:
                    if row.get("schema") != SCHEMA or row.get("identity") != self.identity:
                        raise DataError(f"{where}: another part wrote this sheet; delete the file to write it again")
                    continue
                try:
                    yield self.kind.from_json(row)
                except (KeyError, AssertionError, ValueError):
                    raise DataError(f"{where}: not an entry of this sheet; delete the line") from None

    @contextmanager
    def appending(self) -> Iterator[IO[str]]:
        """The file, locked and ready for more entries. A last line that a kill cut short is dropped first."""
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


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _text(row: JsonObject, name: str) -> str | None:
    value = row[name]
    return None if value is None else str(value)
