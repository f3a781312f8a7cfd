"""Scan of a corpus file: where its lines are, and the digests of lines and passages.

Hashing a line takes a tenth of the time of parsing it, and hashing many lines at once less still. So lines are hashed
in groups first: what an earlier scan met as a group is not looked into, and a line that it met is not parsed.

B lines of a piece of the file that are not blank · G groups of them
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError
from coseek.core.files import parse_line
from coseek.data.array_file import read_array
from coseek.data.digest_table import Digests, DigestTable, as_digests
from coseek.data.passage import Passage, passage_digest

Longs = NDArray[np.int64]

DIGESTS = "digests.npy"
"""The file with the digests of the passages of a corpus, N × 4 int64: id, then content."""
LINES, _GROUPS = "lines.npy", "groups.npy"
_GROUP = 8
"""Lines of a group, on average."""
_PIECE_BYTES = 1 << 20
_PARSED = 4_096
_NEWLINE, _BLANK = ord("\n"), ord(" ")


@dataclass
class LinePositions:
    """What is known of the lines of a corpus file that are not blank, in pieces."""

    spans: list[Longs] = field(default_factory=list)
    lines: list[Digests] = field(default_factory=list)
    passages: list[Digests] = field(default_factory=list)
    groups: list[Digests] = field(default_factory=list)
    """Of each group of lines its digest and the number of its first line."""
    known: list[Longs] = field(default_factory=list)
    """The row of each line in the earlier scan, −1 for a new one."""
    parsed: dict[int, Passage] = field(default_factory=dict)
    """Row → new passage, of the first ones beside an earlier scan: who updates an index reads them next."""

    def joined_lines(self) -> Digests:
        """The digests of all lines; the pieces become one."""
        self.lines = [np.concatenate(self.lines)] if len(self.lines) > 1 else self.lines
        return self.lines[0] if self.lines else np.zeros((0, 2), dtype=np.int64)

    def keep(self, folder: Path) -> None:
        """Store the digests of lines and groups for `KnownLines.read`, if there are any."""
        if self.lines:
            np.save(folder / LINES, self.joined_lines())
            np.save(folder / _GROUPS, np.concatenate(self.groups))


@dataclass(frozen=True)
class KnownLines:
    """The lines of an earlier scan, and the digests of their passages."""

    lines_N2: Digests
    passages_N4: Digests
    groups_G3: Digests

    @classmethod
    def read(cls, folder: Path) -> "KnownLines | None":
        """`None` where nothing is stored, as in indexes of coseek 0.2."""
        files = [folder / name for name in (LINES, DIGESTS, _GROUPS)]
        if not all(file.is_file() for file in files):
            return None
        lines_N2, passages_N4, groups_G3 = (
            cast(Digests, read_array(file, "i", columns)) for file, columns in zip(files, (2, 4, 3), strict=True)
        )
        return cls(lines_N2, passages_N4, groups_G3) if len(lines_N2) == len(passages_N4) else None

    @cached_property
    def line_table(self) -> DigestTable:
        return DigestTable(self.lines_N2)

    @cached_property
    def group_table(self) -> DigestTable:
        return DigestTable(self.groups_G3[:, :2])


def scan_lines(path: Path, known: KnownLines | None, piece_bytes: int = _PIECE_BYTES) -> LinePositions:
    """The positions of every line that is not blank."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the path")
    found = LinePositions()
    rows = at = lines = 0
    for data in _pieces(path, piece_bytes):
        ends_L = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _NEWLINE) + 1
        if not data.endswith(b"\n"):
            ends_L = np.append(ends_L, len(data))
        spans_L2 = np.stack([np.concatenate([[0], ends_L[:-1]]), ends_L], axis=1)
        # A line that does not begin as an object may be blank.
        odd = np.flatnonzero(np.frombuffer(data, dtype=np.uint8)[spans_L2[:, 0]] <= _BLANK).tolist()
        filled_L = np.ones(len(spans_L2), dtype=bool)
        filled_L[[line for line in odd if data[slice(*spans_L2[line])].isspace()]] = False
        piece = _Piece(data, spans_L2[filled_L], np.flatnonzero(filled_L) + lines + 1, f"{path}")
        piece.read(found, known, rows)
        found.spans.append(at + piece.spans_B2)
        rows, at, lines = rows + len(piece.spans_B2), at + len(data), lines + len(spans_L2)
    return found


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """The bytes of a file in pieces of whole lines, about `size` bytes each."""
    with path.open("rb") as file:
        while data := file.read(size):
            yield data if data.endswith(b"\n") else data + file.readline()


@dataclass(frozen=True)
class _Piece:
    """Some whole lines of a corpus file. A group ends behind a line whose length is a multiple of `_GROUP`, so that a
    change moves the borders of its own group alone. A group that is known as a whole is not looked into."""

    data: bytes
    spans_B2: Longs
    numbers_B: Longs
    """Line numbers in the file, for errors."""
    path: str

    def read(self, found: LinePositions, known: KnownLines | None, rows: int) -> None:
        """Add the digests of these lines; `rows` lines come before them."""
        count = len(self.spans_B2)
        if not count:
            return
        ends_B = np.flatnonzero((self.spans_B2[:, 1] - self.spans_B2[:, 0]) % _GROUP == 0) + 1
        firsts_G = np.concatenate([[0], ends_B[ends_B < count]])
        borders_G2 = np.stack(
            [self.spans_B2[firsts_G, 0], self.spans_B2[np.append(firsts_G[1:], count) - 1, 1]], axis=1
        )
        groups_G2 = self._digests(borders_G2)
        found.groups.append(np.concatenate([groups_G2, rows + firsts_G[:, None]], axis=1))
        lines_B2, passages_B4 = np.empty((count, 2), dtype=np.int64), np.empty((count, 4), dtype=np.int64)
        old_B = np.full(count, -1)
        if known is not None:
            same_G = known.group_table.rows(groups_G2)
            group_B = np.repeat(np.arange(len(firsts_G)), np.diff(firsts_G, append=count))
            place_B = known.groups_G3[same_G[group_B], 2] + np.arange(count) - firsts_G[group_B]
            old_B = np.where(same_G[group_B] >= 0, place_B, -1)
            lines_B2[old_B >= 0] = known.lines_N2[old_B[old_B >= 0]]
        left = np.flatnonzero(old_B < 0)
        lines_B2[left] = self._digests(self.spans_B2[left])
        if known is not None:
            old_B[left] = known.line_table.rows(lines_B2[left])
            passages_B4[old_B >= 0] = known.passages_N4[old_B[old_B >= 0]]
        new = np.flatnonzero(old_B < 0)
        digests: list[bytes] = []
        for row in new.tolist():
            passage = self._passage(row)
            digests.append(passage_digest(passage))
            if known is not None and len(found.parsed) < _PARSED:
                found.parsed[rows + row] = passage
        passages_B4[new] = as_digests(b"".join(digests), 4)
        found.known.append(old_B)
        found.lines.append(lines_B2)
        found.passages.append(passages_B4)

    def _passage(self, row: int) -> Passage:
        return _passage(self.data[slice(*self.spans_B2[row])], f"{self.path}, line {self.numbers_B[row]}")

    def _digests(self, spans_M2: Longs) -> Digests:
        """The digests of some spans."""
        view, sha = memoryview(self.data), hashlib.sha256
        return as_digests(b"".join([sha(view[start:end]).digest() for start, end in spans_M2.tolist()]), 4)[:, :2]


def line_digest(line: bytes | memoryview) -> bytes:
    """The first half of the SHA-256 of a line."""
    return hashlib.sha256(line).digest()[:16]


def _passage(line: bytes, where: str) -> Passage:
    row = parse_line(line, where)
    try:
        return Passage.from_json(row)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
