"""Score cache: scores of the passages of search turns, appended to a file as soon as they are known.

The key of a score is the question, the trajectory, the search, the passage and a digest of everything else that it
depends on. A run that was killed therefore computes no score twice.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Generic, TypeVar

from coseek.agents.search_turns import TurnId, TurnRecord
from coseek.core.files import json_line
from coseek.core.lock import Lock, lock_beside
from coseek.data.grade_cache import GradeCache, GradeEntry

E = TypeVar("E", bound=GradeEntry)


@dataclass(frozen=True, slots=True)
class Score(TurnRecord):
    """One score of one passage of one search turn."""

    turn: TurnId
    passage_id: str
    context: str
    """Digest of everything else that the score depends on: the agent's context, the passage's text, a prompt."""
    value: float | None
    """`None` for a fault."""
    detail: str = ""
    """Origin of the score for people: an answer, a count."""
    fault: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return *self.turn.key, self.passage_id, self.context


class ScoreCache(Generic[E]):
    """A grade cache in memory and on disk. Thread-safe. Faults are written but count as unknown."""

    def __init__(self, cache: GradeCache[E]) -> None:
        self.cache = cache
        self._known = cache.entries()
        self._lock: Lock | None = None
        self._file: IO[str] | None = None
        """Kept open: between busy threads, opening a file for every score takes longer than a call's other work."""
        self._writing = threading.Lock()

    def get(self, key: tuple[str, ...]) -> E | None:
        """The entry of a key; `None` for an unknown one and for a fault."""
        entry = self._known.get(key)
        return None if entry is None or entry.fault is not None else entry

    def complete(
        self, keys: Sequence[tuple[str, ...]], make: Callable[[list[int]], Sequence[E]], batch: int
    ) -> list[E]:
        """The entry of every key, in order. `make` computes the unknown ones from their indices, `batch` at once."""
        found = {place: entry for place, key in enumerate(keys) if (entry := self.get(key)) is not None}
        left = [place for place in range(len(keys)) if place not in found]
        for start in range(0, len(left), batch):
            some = left[start : start + batch]
            fresh = make(some)
            self.keep(fresh)
            found.update(zip(some, fresh, strict=True))
        return [found[place] for place in range(len(keys))]

    def keep(self, entries: Sequence[E]) -> None:
        """Append entries. From the first call on, the file is locked as long as this object lives."""
        # Made first: pydantic builds the schema of a first entry, and drops a Ctrl-C that arrives meanwhile.
        lines = [json_line(entry.to_json()) for entry in entries]
        with self._writing:
            if self._file is None:
                self._lock = lock_beside(self.cache.path)
                with self.cache.appending():  # makes the file, or mends what a kill cut short
                    pass
                self._file = self.cache.path.open("a", encoding="utf-8")
                weakref.finalize(self, self._file.close)
            self._file.writelines(lines)
            self._file.flush()
            self._known.update((entry.key, entry) for entry in entries)

    def close(self) -> None:
        """Close the file and release its lock; `keep` would take them again."""
        with self._writing:
            if self._file is not None and self._lock is not None:
                self._file.close()
                self._lock.release()
                self._file = self._lock = None
