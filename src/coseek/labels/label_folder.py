"""Label folder: `labels.yaml` (settings, identities, versions, commit), `labels.jsonl`, `dropped.jsonl`, `scores/`,
and the long texts of labels in `texts.jsonl`.

Rows are appended as they are known. A kill loses only the current turn, and a resumed folder ends with the same bytes
as an uninterrupted one. A folder whose turns are all done is closed with `SHA256SUMS`.
"""

import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Generic, TypeVar, cast

from coseek.agents.search_turns import TurnId, TurnRecord
from coseek.core.errors import DataError, SettingError
from coseek.core.files import (
    Json,
    JsonObject,
    is_failed_start,
    json_line,
    parse_line,
    parse_rows,
    parsing,
    read_jsonl,
    read_yaml,
    write_jsonl,
    write_yaml,
)
from coseek.core.lock import Lock, kept_lock, lock_folder
from coseek.core.plugins import plugin_names
from coseek.core.settings import check_same_settings
from coseek.data.digests import remove_digests, write_digests
from coseek.data.grade_cache import GradeCache, GradeEntry
from coseek.data.run import RowKey, check_whole_rows, drop_partial_line, provenance
from coseek.labels.label_set import DroppedTurn, LabelSet
from coseek.labels.maker import PACKAGE, Labelled, view_of

# Text store: the long texts of label rows, each once in a file beside them.
#
# A row of fifty pages would take megabytes. In a stored row, a passage's text and an earlier search's document of more
# than `LONG` characters are `{"sha256": KEY}`; the file has one line `{"key": KEY, "text": …}` for each text.

LONG = 256
"""Characters; shorter texts stay in the row."""
_REFERENCE = "sha256"
_CACHED = 1024
"""Texts in memory."""


class TextStore:
    """The texts of one folder. Thread-safe. Positions are in memory, texts in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._spans: dict[str, tuple[int, int]] | None = None
        self._file: IO[bytes] | None = None
        self._text = lru_cache(_CACHED)(self._read)

    def shorten(self, row: JsonObject) -> JsonObject:
        """Store the long texts of a row, and replace them in it by references."""
        for container, key in _text_slots(row):
            text = container[key]  # type: ignore[index]
            if isinstance(text, str) and len(text) > LONG:
                container[key] = {_REFERENCE: self._store(text)}  # type: ignore[index]
        return row

    def restore(self, row: JsonObject) -> JsonObject:
        """Replace the references in a row by their texts. Raises `DataError` for a missing text."""
        for container, key in _text_slots(row):
            value = container[key]  # type: ignore[index]
            if isinstance(value, dict):
                container[key] = self._text(str(value.get(_REFERENCE)))  # type: ignore[index]
        return row

    def arrange(self, rows: Iterable[JsonObject]) -> None:
        """Keep the texts of these stored rows, in the order of their first use."""
        referenced_keys: dict[str, None] = {}
        for row in rows:
            for container, key in _text_slots(row):
                if isinstance(value := container[key], dict):  # type: ignore[index]
                    referenced_keys[str(value.get(_REFERENCE))] = None
        with self._lock:
            order = list(self._index())
        if order == list(referenced_keys):
            return
        write_jsonl(self.path, ({"key": key, "text": self._text(key)} for key in referenced_keys))
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = self._spans = None  # the file is read again at the next use

    def _store(self, text: str) -> str:
        """Store a text; returns its key."""
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        with self._lock:
            spans = self._index()
            if key not in spans:
                if self._file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self.path.open("a+b")
                    weakref.finalize(self, self._file.close)
                    self._file.truncate(max((end for _, end in spans.values()), default=0))  # an incomplete last line
                start = self._file.seek(0, 2)
                line = json_line({"key": key, "text": text}).encode()
                self._file.write(line)
                self._file.flush()
                spans[key] = start, start + len(line)
        return key

    def _read(self, key: str) -> str:
        with self._lock:
            span = self._index().get(key)
            if span is None:
                raise DataError(f"{self.path} lacks the text {key}, which a row names; make the labels again")
            with self.path.open("rb") as file:
                file.seek(span[0])
                line = file.read(span[1] - span[0])
        with parsing(self.path, "make the labels again"):
            return str(parse_line(line, str(self.path))["text"])

    def _index(self) -> dict[str, tuple[int, int]]:
        """Key → start and end of its line, by one pass over the file. An incomplete last line does not count."""
        if self._spans is None:
            self._spans = {}
            if self.path.exists():
                offset = 0
                with self.path.open("rb") as lines:
                    for number, line in enumerate(lines, start=1):
                        if line.endswith(b"\n") and line.strip():
                            location = f"{self.path}, line {number}"
                            with parsing(location, "make the labels again"):
                                self._spans[str(parse_line(line, location)["key"])] = offset, offset + len(line)
                        offset += len(line)
        return self._spans


def _text_slots(row: JsonObject) -> Iterator[tuple[Json, str | int]]:
    """The positions in a row that may hold long texts, as (container, key)."""
    for candidate in cast(list[JsonObject], row.get("candidates", [])):
        yield cast(Json, candidate), "text"
    query = row.get("query")
    history = query.get("history", []) if isinstance(query, dict) else []
    for turn in cast(list[JsonObject], history):
        documents = turn.get("documents")
        if isinstance(documents, list):
            for number in range(len(documents)):
                yield documents, number


log = logging.getLogger(__name__)

R = TypeVar("R", LabelSet, DroppedTurn)


class LabelFolder:
    """Labels on disk."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "labels.yaml").exists():
            raise DataError(f"{folder} holds no labels: it has no labels.yaml; make them with `coseek label`")
        self.folder = folder
        self.sets_path, self.dropped_path = folder / "labels.jsonl", folder / "dropped.jsonl"
        self.texts = TextStore(folder / "texts.jsonl")
        self._lock: Lock | None = None
        """Held while labels are made."""

    @classmethod
    def create(cls, folder: Path, settings: JsonObject, identity: str) -> "LabelFolder":
        """A new folder, locked as long as the object lives. Raises `DataError` for one with labels."""
        with kept_lock(folder) as lock:
            cls.refuse_old(folder)
            write_yaml(folder / "labels.yaml", {"settings": settings, "identity": identity, **provenance()})
            labels = cls(folder)
            labels._lock = lock
            return labels

    @staticmethod
    def refuse_old(folder: Path) -> None:
        """Raise `DataError` for a folder with labels, so that nothing is overwritten. A failed start left none."""
        if (folder / "labels.yaml").exists() and not is_failed_start(folder, "labels.yaml"):
            raise DataError(f"{folder} holds labels already; continue them with --resume, or choose another --out")

    @classmethod
    def begin(
        cls,
        folder: Path,
        settings: JsonObject,
        identity: str,
        resume: bool,
        fixed: Callable[[JsonObject], JsonObject] = dict,
    ) -> "LabelFolder":
        """Create a folder, or with `resume` open an existing one. Raises `SettingError` if its identity differs, or one
        of the settings that `fixed` returns. The folder is locked as long as the object lives."""
        if not (resume and (folder / "labels.yaml").exists()) or is_failed_start(folder, "labels.yaml"):
            return cls.create(folder, settings, identity)
        labels = cls(folder)
        labels._lock = lock_folder(folder)
        stored = labels.record.get("settings")
        check_same_settings(folder, fixed(stored) if isinstance(stored, dict) else stored, fixed(settings))
        if labels.record.get("identity") != identity:
            raise SettingError(
                f"{folder} was begun with another retriever, agent or scorer under the same name (an index or weights "
                "have changed since); choose another --out"
            )
        return labels

    @property
    def record(self) -> JsonObject:
        """The content of `labels.yaml`."""
        return read_yaml(self.folder / "labels.yaml", "record")

    @property
    def view(self) -> str:
        """The query view of the labels' method; `query` for imported ones and for a user's method, which is not run."""
        method = cast(JsonObject, self.record.get("settings") or {}).get("method")
        return view_of(method) if isinstance(method, str) and method in plugin_names(PACKAGE) else "query"

    def sets(self) -> Iterator[LabelSet]:
        """The stored label sets."""
        return _read_rows(self.sets_path, self._parse_set)

    def dropped(self) -> Iterator[DroppedTurn]:
        """The turns without a label, each with its reason."""
        return _read_rows(self.dropped_path, DroppedTurn.from_json)

    def recover(
        self, known: Mapping[TurnId, str] | None = None, digests: Callable[[], Mapping[RowKey, str]] = dict
    ) -> set[TurnId]:
        """The finished turns. The last turn of `labels.jsonl` is removed, because a kill may have left only some of its
        sets. `known` are the turns that are labelled, with the digests of their trajectories, and `digests` gives the
        digests of all trajectories, those without a search included: rows of a repeated trajectory are
        removed. A broken row, and one of any other turn, is refused before anything is removed."""
        stored: set[tuple[TurnId, str]] = set()
        check_whole_rows(self.dropped_path, lambda row: stored.add(_origin_of(DroppedTurn.from_json(row))))
        check_whole_rows(self.sets_path, lambda row: stored.add(_origin_of(self._parse_set(row))))
        stale: set[TurnId] = set()
        if known is not None:
            current = {(turn.question_id, turn.seed): digest for turn, digest in known.items()}
            if any(turn not in known for turn, _ in stored):  # a repeated run may search less than before
                current.update(digests())
            stale = {turn for turn, old in stored if current.get((turn.question_id, turn.seed), old) != old}
            if unknown_turns := {turn for turn, _ in stored}.difference(known, stale):
                first = min(unknown_turns, key=lambda turn: turn.key)
                raise DataError(f"{self.folder} has a row of {first}, which the runs do not have; choose another --out")
        drop_partial_line(self.dropped_path)
        drop_partial_line(self.sets_path)
        remove_digests(self.folder)
        self._remove_turns(stale)
        cut_last_turn(self.sets_path)
        return self._turns_with_rows()

    def _remove_turns(self, turns: Collection[TurnId]) -> None:
        """Remove the rows of turns whose trajectories have gone."""
        if not turns:
            return
        log.warning(
            "%s: runs were repeated, so the labels of %s of their searches are recreated", self.folder, len(turns)
        )
        for path in filter(Path.exists, (self.sets_path, self.dropped_path)):
            write_jsonl(path, [row for _, row in read_jsonl(path) if _turn_of(row) not in turns])

    def _parse_set(self, row: JsonObject) -> LabelSet:
        return LabelSet.from_json(self.texts.restore(row))

    def _turns_with_rows(self) -> set[TurnId]:
        """The turns with rows."""
        paths = [path for path in (self.sets_path, self.dropped_path) if path.exists()]
        return {_turn_of(row) for path in paths for _, row in read_jsonl(path)}

    @contextmanager
    def appending(self) -> Iterator[Callable[[Labelled], None]]:
        """A function that appends one row to its file. Both files are made."""
        with self.sets_path.open("a", encoding="utf-8") as sets, self.dropped_path.open("a", encoding="utf-8") as rest:

            def append(row: Labelled) -> None:
                file = sets if isinstance(row, LabelSet) else rest
                file.write(json_line(self.texts.shorten(row.to_json())))
                file.flush()

            yield append

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def absorb(self, source: "LabelFolder") -> None:
        """Append the rows of another folder for turns without rows here, and the lines of its scores."""
        absorb_lines(source.folder / "scores", self.folder / "scores")
        stored = self._turns_with_rows()
        for target, path in ((self.sets_path, source.sets_path), (self.dropped_path, source.dropped_path)):
            rows = [row for _, row in read_jsonl(path) if _turn_of(row) not in stored] if path.exists() else []
            with target.open("a", encoding="utf-8") as file:
                file.writelines(json_line(self.texts.shorten(source.texts.restore(row))) for row in rows)

    def arrange(self, order: Sequence[TurnId]) -> None:
        """Sort the rows by turn, since a fault or a kill changes their order, and close the folder."""
        position = {turn: number for number, turn in enumerate(order)}
        for path in (self.sets_path, self.dropped_path):
            rows = [row for _, row in read_jsonl(path)]
            ordered = sorted(rows, key=lambda row: (position[_turn_of(row)], cast(int, row.get("copy", 0))))
            if ordered != rows:
                write_jsonl(path, ordered)
        self.texts.arrange(row for _, row in read_jsonl(self.sets_path))
        for path in self._rows_and_scores:
            drop_partial_line(path)  # a score file to which nothing was added may still end in an incomplete line
        write_digests(self.folder, [self.folder / "labels.yaml", *self._rows_and_scores])

    @property
    def _rows_and_scores(self) -> list[Path]:
        rows = (self.sets_path, self.dropped_path, self.texts.path)
        return [*filter(Path.exists, rows), *sorted((self.folder / "scores").glob("*.jsonl"))]


def absorb_lines(source: Path, target: Path) -> None:
    """Append the lines of a folder's `.jsonl` files that are missing in the same files of another. Incomplete last
    lines are skipped."""
    for path in sorted(source.glob("*.jsonl")):
        LineFile(target / path.name).add(_complete_lines(path))


class LineFile:
    """A file of lines, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            drop_partial_line(path)
        self._digests = {hashlib.sha256(line).digest() for line in _complete_lines(path)} if path.exists() else set()

    def add(self, lines: Iterable[bytes]) -> None:
        """Append the lines that are not in the file."""
        new_lines = {digest: line for line in lines if (digest := hashlib.sha256(line).digest()) not in self._digests}
        with self._path.open("ab") as file:
            file.writelines(new_lines.values())
        self._digests |= new_lines.keys()


def _complete_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        yield from (line for line in lines if line.endswith(b"\n"))


def cut_last_turn(path: Path) -> None:
    """Remove the rows of the last turn from the end of `labels.jsonl`."""
    if not path.exists():
        return
    last_turn: TurnId | None = None
    begins = end = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            turn = _turn_of(parse_line(line, f"{path}, line {number}"))
            if turn != last_turn:
                last_turn, begins = turn, end
            end += len(line)
    with path.open("r+b") as file:
        file.truncate(begins)


def _turn_of(row: JsonObject) -> TurnId:
    """The turn of a line of either file."""
    with parsing("a row of labels", "delete it, and go on with --resume"):
        question = row.get("question")
        ident = question["id"] if isinstance(question, dict) else row["question_id"]
        return TurnId(cast(str, ident), cast(int, row["seed"]), cast(int, row["search"]))


def _origin_of(row: Labelled) -> tuple[TurnId, str]:
    return row.turn, row.trajectory


def _read_rows(path: Path, make: Callable[[JsonObject], R]) -> Iterator[R]:
    if not os.path.lexists(path):  # a link to nothing is refused by its reader
        return
    yield from parse_rows(path, make)


# Score cache: scores of the passages of search turns, appended to a file as soon as they are known.
#
# The key of a score is the question, the trajectory, the search, the passage and a digest of everything else that it
# depends on. A run that was killed therefore computes no score twice.

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
        self._opened = ExitStack()
        weakref.finalize(self, self._opened.close)
        self._file: IO[str] | None = None
        """Kept open: between busy threads, opening a file for every score takes longer than a call's other work."""
        self._writing = threading.Lock()

    @property
    def identity(self) -> str:
        """The grader's identity."""
        return self.cache.identity

    def get(self, key: tuple[str, ...]) -> E | None:
        """The entry of a key; `None` for an unknown one and for a fault."""
        entry = self._known.get(key)
        return None if entry is None or entry.fault is not None else entry

    def complete(
        self, keys: Sequence[tuple[str, ...]], make: Callable[[list[int]], Sequence[E]], batch: int
    ) -> list[E]:
        """The entry of every key, in order. `make` computes the unknown ones from their indices, `batch` at once."""
        entries = {index: entry for index, key in enumerate(keys) if (entry := self.get(key)) is not None}
        missing = [index for index in range(len(keys)) if index not in entries]
        for start in range(0, len(missing), batch):
            indices = missing[start : start + batch]
            new_scores = make(indices)
            self.keep(new_scores)
            entries.update(zip(indices, new_scores, strict=True))
        return [entries[index] for index in range(len(keys))]

    def keep(self, entries: Sequence[E]) -> None:
        """Append entries. From the first call on, the file is locked as long as this object lives."""
        # Made first: pydantic builds the schema of a first entry, and drops a Ctrl-C that arrives meanwhile.
        lines = [json_line(entry.to_json()) for entry in entries]
        with self._writing:
            if self._file is None:
                self._file = self._opened.enter_context(self.cache.appending())
            self._file.writelines(lines)
            self._file.flush()
            self._known.update((entry.key, entry) for entry in entries)

    def close(self) -> None:
        """Close the file and release its lock; `keep` would take them again."""
        with self._writing:
            self._opened.close()
            self._file = None
