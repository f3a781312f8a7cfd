"""Text store: the long texts of label rows, each once in a file beside them.

A row of fifty pages would hold megabytes. In a stored row, a passage's text and an earlier search's document of more
than `LONG` characters are `{"sha256": KEY}`; the file has one line `{"key": KEY, "text": …}` for each text.
"""

import hashlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, json_line, parse_line, shaped, write_jsonl

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
        """The row with references; its long texts are stored. The row itself is changed."""
        for place, key in _places(row):
            text = place[key]  # type: ignore[index]
            if isinstance(text, str) and len(text) > LONG:
                place[key] = {_REFERENCE: self._keep(text)}  # type: ignore[index]
        return row

    def restore(self, row: JsonObject) -> JsonObject:
        """The row with its texts. Raises `DataError` for a text that is not there."""
        for place, key in _places(row):
            value = place[key]  # type: ignore[index]
            if isinstance(value, dict):
                place[key] = self._text(str(value.get(_REFERENCE)))  # type: ignore[index]
        return row

    def arrange(self, rows: Iterable[JsonObject]) -> None:
        """Keep the texts of these stored rows, in the order of their first use."""
        wanted: dict[str, None] = {}
        for row in rows:
            for place, key in _places(row):
                if isinstance(value := place[key], dict):  # type: ignore[index]
                    wanted[str(value.get(_REFERENCE))] = None
        with self._lock:
            order = list(self._index())
        if order == list(wanted):
            return
        write_jsonl(self.path, ({"key": key, "text": self._text(key)} for key in wanted))
        with self._lock:
            self._forget()

    def _keep(self, text: str) -> str:
        """Store a text; returns its key."""
        key = text_key(text)
        with self._lock:
            spans = self._index()
            if key not in spans:
                if self._file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self.path.open("a+b")
                    weakref.finalize(self, self._file.close)
                    self._file.truncate(max((end for _, end in spans.values()), default=0))  # what a kill cut short
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
                raise DataError(f"{self.path} lacks the text {key}, which a row names; make the labels anew")
            with self.path.open("rb") as file:
                file.seek(span[0])
                line = file.read(span[1] - span[0])
        with shaped(self.path, "make the labels anew"):
            return str(parse_line(line, str(self.path))["text"])

    def _index(self) -> dict[str, tuple[int, int]]:
        """Key → start and end of its line, by one pass over the file. A line that a kill cut short does not count."""
        if self._spans is None:
            self._spans = {}
            if self.path.exists():
                at = 0
                with self.path.open("rb") as lines:
                    for number, line in enumerate(lines, start=1):
                        if line.endswith(b"\n") and line.strip():
                            where = f"{self.path}, line {number}"
                            with shaped(where, "make the labels anew"):
                                self._spans[str(parse_line(line, where)["key"])] = at, at + len(line)
                        at += len(line)
        return self._spans

    def _forget(self) -> None:
        """Read the file anew at the next use."""
        if self._file is not None:
            self._file.close()
        self._file = self._spans = None


def text_key(text: str) -> str:
    """The key of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _places(row: JsonObject) -> Iterator[tuple[Json, str | int]]:
    """The places of a row that may hold long texts, as (container, key)."""
    for candidate in cast(list[JsonObject], row.get("candidates", [])):
        yield cast(Json, candidate), "text"
    query = row.get("query")
    history = query.get("history", []) if isinstance(query, dict) else []
    for turn in cast(list[JsonObject], history):
        documents = turn.get("documents")
        if isinstance(documents, list):
            for number in range(len(documents)):
                yield documents, number
