"""Passage and corpus, which retrievers search; a passage's neighbours in its document."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias, overload

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, parse_rows, write_jsonl
from coseek.core.fingerprint import digest_of
from coseek.core.record import Record
from coseek.core.strict_json import is_deep

DEEPEST_META = 50
"""Nesting depth of `meta`, below that of JSON, since stored runs nest questions and passages."""
TEXTS = (
    *("text", "contents", "content", "snippet", "body", "passage", "summary", "description", "page_content", "chunk"),
    "passage_text",
)
"""Fields of other programs' hits that hold the text; the first that is not blank counts."""
_NO_META: Mapping[str, Json] = {}
"""Shared by all passages without fields, to save memory."""


@dataclass(frozen=True, slots=True)
class Passage(Record):
    """A piece of text that can be found."""

    id: str
    title: str
    text: str
    raw_contents: str | None = field(default=None, compare=False, repr=False)
    """`contents` of the corpus file, unless it is the quoted title, a newline and the text."""
    meta: Mapping[str, Json] = field(default_factory=lambda: _NO_META, compare=False, repr=False)
    """Its source and other fields: `path`, `url`, `page`, `date`, `next`, `previous` …"""

    @property
    def contents(self) -> str:
        """The `contents` field of the `/retrieve` protocol: that of the corpus file, else the quoted title, a newline
        and the text."""
        return _contents(self.title, self.text) if self.raw_contents is None else self.raw_contents

    @property
    def url(self) -> str:
        """The web address: `url` in `meta`, or the id itself; empty without one."""
        candidates = (self.meta.get("url"), self.id)
        return next((url for url in candidates if isinstance(url, str) and url.startswith(("http://", "https://"))), "")

    @property
    def place(self) -> str:
        """The web address or the path of the file, with page or row: `notes/manual.pdf#page=3`. Empty if neither is
        known."""
        path = self.meta.get("path")
        file = self.url or (path if isinstance(path, str) else "")
        part = next((f"#{name}={self.meta[name]}" for name in ("page", "row") if self.meta.get(name) is not None), "")
        return file and file + part

    def to_json(self) -> JsonObject:
        record: JsonObject = {"id": self.id, "title": self.title, "text": self.text}
        if self.raw_contents is not None:
            record["contents"] = self.raw_contents
        if self.meta:
            record["meta"] = dict(self.meta)
        return record

    @classmethod
    def from_json(cls, record: JsonObject) -> "Passage":
        """Read `{"id", "title", "text"}` or `{"id", "contents"}`, whose first line is the title, mostly quoted. If a
        row has `title` and `contents`, a first line that differs from the title belongs to the body."""
        if record.get("id") is None:
            raise DataError('a passage needs an "id"')
        ident = read_id(record)
        contents = None if record.get("contents") is None else _text(record["contents"], "contents", ident)
        title = "" if record.get("title") is None else _text(record["title"], "title", ident)
        if record.get("text") is not None:
            body = _text(record["text"], "text", ident)
        elif contents is None:
            raise DataError(f'passage {ident!r} has neither "text" nor "contents"')
        else:
            title, body = _split_contents(contents, title)
        return cls(ident, title, body, None if contents == _contents(title, body) else contents, _meta(record, ident))


def _contents(title: str, text: str) -> str:
    return f'"{title}"\n{text}'


def _split_contents(contents: str, title: str) -> tuple[str, str]:
    """Split `contents` into title and body. `title` is the row's own title, or empty."""
    if title and contents.startswith(_contents(title, "")):
        return title, contents.removeprefix(_contents(title, ""))
    first, newline, body = contents.partition("\n")
    if title.strip() and not (newline and first.strip(' "\r') == title.strip(' "\r')):
        return title, contents
    is_quoted = len(first) >= 2 and first[0] == first[-1] == '"'
    return (first[1:-1] if is_quoted else first, body) if newline else ("", first)


def read_id(record: JsonObject) -> str:
    """The id of a row. Whole numbers become texts."""
    ident = record["id"]
    if not isinstance(ident, str | int) or isinstance(ident, bool):
        raise DataError(f'an "id" is a text or a whole number, not {ident!r}')
    return str(ident)


def _meta(record: JsonObject, ident: str) -> Mapping[str, Json]:
    meta = record.get("meta")
    if not isinstance(meta, dict) or not meta:
        return _NO_META
    if is_deep(meta, DEEPEST_META):
        raise DataError(f"passage {ident!r}: meta is nested more than {DEEPEST_META} deep; flatten it")
    return meta


def _text(value: Json, name: str, ident: str) -> str:
    if not isinstance(value, str):
        raise DataError(f'passage {ident!r}: "{name}" is a text, not {value!r}')
    return value


@dataclass(frozen=True, slots=True)
class Hit(Record):
    """A retrieved passage with its score; higher is better, and scales differ by retriever."""

    passage: Passage
    score: float

    def to_json(self) -> JsonObject:
        return {**self.passage.to_json(), "score": self.score}

    @classmethod
    def from_json(cls, record: JsonObject) -> "Hit":
        score = record["score"]
        if not isinstance(score, int | float):
            raise DataError(f"'score' must be a number, not {score!r}")
        return cls(Passage.from_json(record), float(score))


class Corpus(Sequence[Passage]):
    """An ordered set of passages with unique ids."""

    def __init__(self, passages: Iterable[Passage], source: str = "the corpus") -> None:
        self._passages = tuple(passages)
        self._row: dict[str, int] = {}
        if not self._passages:
            raise DataError(f"{source} is empty; it needs at least one passage")
        for row, passage in enumerate(self._passages):
            if self._row.setdefault(passage.id, row) != row:
                raise DataError(f"{source} has the id {passage.id!r} twice; ids must be unique")
        self._digests: bytes | None = None

    def __repr__(self) -> str:
        return f"Corpus({len(self)} passages)"

    def __len__(self) -> int:
        return len(self._passages)

    @overload
    def __getitem__(self, row: int) -> Passage: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[Passage, ...]: ...
    def __getitem__(self, row: int | slice) -> Passage | tuple[Passage, ...]:
        if isinstance(row, slice):
            return tuple(map(self._passage_at, range(*row.indices(len(self)))))
        return self._passage_at(row)

    def _passage_at(self, row: int) -> Passage:
        """The passage in a row; negative rows count from the end."""
        return self._passages[row]

    def __iter__(self) -> Iterator[Passage]:
        return iter(self._passages)

    def by_id(self, ident: str) -> Passage:
        """The passage with this id. Raises `KeyError` if it is missing."""
        return self._passages[self._row[ident]]

    def has(self, ident: str) -> bool:
        return ident in self._row

    @property
    def digests(self) -> bytes:
        """The `passage_digest` of every passage, in order."""
        if self._digests is None:
            self._digests = b"".join(map(passage_digest, self))
        return self._digests

    @property
    def digest(self) -> str:
        """SHA-256 of `digests`, which an index stores."""
        return hashlib.sha256(self.digests).hexdigest()

    @classmethod
    def load(cls, path: Path) -> "Corpus":
        """Read `corpus.jsonl` or `corpus.jsonl.gz`. Raises `DataError` with the line of a broken row."""
        return cls(parse_rows(path, Passage.from_json), source=str(path))

    def save(self, path: Path) -> None:
        write_jsonl(path, (passage.to_json() for passage in self))


def id_digest(ident: str) -> bytes:
    """BLAKE2b of an id, 16 bytes."""
    return hashlib.blake2b(ident.encode(), digest_size=16).digest()


def passage_digest(passage: Passage) -> bytes:
    """32 bytes: the digest of the id, then BLAKE2b of the title's length, the title and the text (16 bytes)."""
    title = passage.title.encode()
    content = len(title).to_bytes(8, "big") + title + passage.text.encode()
    return id_digest(passage.id) + hashlib.blake2b(content, digest_size=16).digest()


def told_apart(passage: Passage, known: dict[str, Passage]) -> Passage:
    """Register a passage in `known` and return it. If the id already names another title or text, a digest is appended
    to it, since other programs use documents, ranks or addresses as ids."""
    while known.setdefault(passage.id, passage) != passage:
        meta = {**passage.meta, "url": passage.url} if passage.url else passage.meta
        passage = replace(passage, id=f"{passage.id}#{digest_of(passage.title, passage.text)[:8]}", meta=meta)
    return passage


Way: TypeAlias = Literal["previous", "next"]


def neighbours(passage: Passage, corpus: Corpus, way: Way) -> Iterator[Passage]:
    """The passages before (`previous`) or after (`next`) a passage, nearest first, as far as the links lead."""
    seen_ids = {passage.id}  # links may form a cycle in a corpus of another program
    while isinstance(ident := passage.meta.get(way), str) and ident not in seen_ids and corpus.has(ident):
        seen_ids.add(ident)
        passage = corpus.by_id(ident)
        yield passage
