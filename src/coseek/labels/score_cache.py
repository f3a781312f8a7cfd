"""Scores: what was found out about the passages of search turns, each kept in a sheet as soon as it is known.

A score is kept under the question, the trajectory, the search, the passage and a digest of all else that it depends on
(a turn of which one passage was scored is not done). So a killed run pays for nothing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from coseek.agents.search_turns import TurnId
from coseek.core.files import JsonObject
from coseek.core.lock import Lock, lock_beside
from coseek.data.grade_cache import GradeCache, GradeEntry

E = TypeVar("E", bound=GradeEntry)


@dataclass(frozen=True, slots=True)
class Score:
    """One number for one passage of one search turn."""

    turn: TurnId
    passage_id: str
    context: str
    """Digest of all else that the number depends on: what the agent had read, the passage's words, a prompt."""
    value: float | None
    """`None` for a fault."""
    detail: str = ""
    """What it was read from, for people: an answer, a count."""
    fault: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return *self.turn.key, self.passage_id, self.context

    def to_json(self) -> JsonObject:
        return {
            **self.turn.to_json(),
            "passage_id": self.passage_id,
            "context": self.context,
            "value": self.value,
            "detail": self.detail,
            "fault": self.fault,
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> "Score":
        value, fault = row["value"], row["fault"]
        assert value is None or isinstance(value, int | float)
        return cls(
            turn=TurnId.from_json(row),
            passage_id=str(row["passage_id"]),
            context=str(row["context"]),
            value=None if value is None else float(value),
            detail=str(row["detail"]),
            fault=None if fault is None else cast(str, fault),
        )


class ScoreCache(Generic[E]):
    """A sheet that is read once, and then grows with what is found out. Faults are written down and asked again."""

    def __init__(self, sheet: GradeCache[E]) -> None:
        self.sheet = sheet
        self._known = sheet.entries()
        self._lock: Lock | None = None

    def get(self, key: tuple[str, ...]) -> E | None:
        """What is known; `None` for what is not, or was a fault."""
        entry = self._known.get(key)
        return None if entry is None or entry.fault is not None else entry

    def keep(self, entries: Sequence[E]) -> None:
        """Append these at once. From the first time on, the sheet is locked as long as this object lives."""
        if self._lock is None:
            self._lock = lock_beside(self.sheet.path)
            with self.sheet.appending():  # makes the file, or mends what a kill cut short
                pass
        with self.sheet.path.open("a", encoding="utf-8") as file:
            for entry in entries:
                self.sheet.append(file, entry)
                self._known[entry.key] = entry
