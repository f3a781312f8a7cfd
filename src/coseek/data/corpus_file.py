"""A corpus that stays on disk, with 32 memory-mapped bytes a passage; passages are read on access.

`scan` reads the file once, `keep` stores positions and digests, and `open` uses them. `rescan` parses only the lines
that an earlier scan did not meet: hashing a line takes a tenth of the time of parsing it.
"""

import hashlib
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, DiskFault
from coseek.core.files import json_line, parse_line, read_json, write_json
from coseek.data.digest_table import Digests, DigestTable, as_digests
from coseek.data.passage import Corpus, Passage, id_digest, passage_digest

Longs = NDArray[np.int64]

DIGESTS = "digests.npy"
"""The file with the digests of the passages of a corpus, N × 4 int64: id, then content."""
_LINES = "lines.npy"
_CHUNK_LINES = 16_384
_STAMP = "corpus.json"
_RACE_NS = 2_000_000_000
"""Coarsest time stamps of file systems: a file this young at its scan may change without a new time."""


def _stamp(path: Path) -> dict[str, int]:
    """Size in bytes and modification time, to recognise a scanned file without reading it."""
    found = path.stat()
    return {"size": found.st_size, "modified_ns": found.st_mtime_ns}


class CorpusFile(Corpus):
    """A `corpus.jsonl` on disk, not gzipped.

    The file is held open, so a file that replaces it is not read. Writes into it are noticed where a line is no longer
    a passage.
    """

    def __init__(self, path: Path, spans_N2: Longs, hashes_N2: Longs, digest: str, stamp: dict[str, int]) -> None:
        """`spans_N2`: start and end byte of each line. `hashes_N2`: hash of an id and its row, by rising hash."""
        self.path = path
        self._digest = digest
        self._stamp = stamp
        self._spans_N2 = spans_N2
        self._hashes_N2 = hashes_N2
        self._digests: bytes | None = None
        self._lines = b""
        """Digests of the lines, of 16 bytes each; empty for a corpus that was opened without reading it."""
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    @property
    def digest(self) -> str:
        return self._digest

    @classmethod
    def scan(cls, path: Path) -> "CorpusFile":
        """Read the file once, for the positions of its lines and its digest. Raises `DataError` for repeated ids."""
        return cls._located(path, _scanned(path, None), str(path))

    @classmethod
    def rescan(cls, path: Path, folder: Path) -> "CorpusFile":
        """Scan a file of which an earlier state was kept in `folder`; lines that were there are not parsed."""
        return cls._located(path, _scanned(path, _KnownLines.read(folder)), str(path))

    @classmethod
    def write(cls, path: Path, passages: Iterable[Passage], source: str) -> "CorpusFile":
        """Write passages as they come, in 100 bytes of memory each. Raises `DataError` for repeated ids and for none,
        naming `source`."""
        return cls._located(path, _written(path, passages), source)

    @classmethod
    def _located(cls, path: Path, positions: "_Positions", source: str) -> "CorpusFile":
        if not positions.lines:
            raise DataError(f"{source} is empty; it needs at least one passage")
        spans_N2 = np.concatenate(positions.spans)
        hashes_N = _hashes(as_digests(positions.digests, 4))
        order_N = np.argsort(hashes_N, kind="stable")
        pairs_N2 = np.stack([hashes_N[order_N], order_N], axis=1)
        made = cls(path, spans_N2, pairs_N2, hashlib.sha256(positions.digests).hexdigest(), _stamp(path))
        made._digests, made._lines = bytes(positions.digests), bytes(positions.lines)
        made._check_unique(source)
        return made

    @classmethod
    def open(cls, path: Path, folder: Path, digest: str) -> "CorpusFile":
        """Open a corpus with the positions in `folder`; a file that may have changed is scanned again."""
        stamp = _stamp(path)
        same = (folder / _STAMP).is_file() and read_json(folder / _STAMP) == stamp
        if not same or (folder / _STAMP).stat().st_mtime_ns < stamp["modified_ns"] + _RACE_NS:
            return cls.rescan(path, folder)
        # asarray: a plain view, since slices of np.memmap cost microseconds each.
        spans_N2, hashes_N2 = (np.asarray(np.load(folder / name, mmap_mode="r")) for name in ("spans.npy", "ids.npy"))
        return cls(path, spans_N2, hashes_N2, digest, stamp)

    def keep(self, folder: Path) -> None:
        """Store the positions in `folder` for `open`, and the digests of the lines for `rescan`."""
        np.save(folder / "spans.npy", self._spans_N2)
        if self._lines:
            np.save(folder / _LINES, as_digests(self._lines, 2))
        np.save(folder / "ids.npy", self._hashes_N2)
        write_json(folder / _STAMP, {**self._stamp})

    def __len__(self) -> int:
        return len(self._spans_N2)

    @overload
    def __getitem__(self, row: int) -> Passage: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[Passage, ...]: ...
    def __getitem__(self, row: int | slice) -> Passage | tuple[Passage, ...]:
        if isinstance(row, slice):
            return tuple(self._read(each) for each in range(*row.indices(len(self))))
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a corpus of {len(self)} passages")
        return self._read(row % len(self))

    def __iter__(self) -> Iterator[Passage]:
        return map(self._read, range(len(self)))

    def by_id(self, ident: str) -> Passage:
        for passage in self._called(ident):
            return passage
        raise KeyError(ident)

    def has(self, ident: str) -> bool:
        return any(True for _ in self._called(ident))

    def _called(self, ident: str) -> Iterator[Passage]:
        """The passage with this id, if any; ids with the same hash are compared."""
        wanted = int(_hashes(as_digests(id_digest(ident), 2))[0])
        hashes_N = self._hashes_N2[:, 0]
        first, last = np.searchsorted(hashes_N, [wanted, wanted + 1])
        for row in self._hashes_N2[first:last, 1].tolist():
            passage = self._read(row)
            if passage.id == ident:
                yield passage

    def _read(self, row: int) -> Passage:
        start, end = self._spans_N2[row].tolist()
        line = os.pread(self._handle, end - start, start)
        try:
            return Passage.from_json(parse_line(line, f"{self.path}, passage {row}"))
        except DataError as error:
            raise DiskFault(f"{error} (the file was written to while it was in use; make the index anew)") from None

    def _check_unique(self, source: str) -> None:
        hashes_N, rows_N = self._hashes_N2[:, 0], self._hashes_N2[:, 1]
        for place in np.flatnonzero(hashes_N[1:] == hashes_N[:-1]).tolist():
            # Equal hashes are adjacent; three equal ones make two pairs.
            one, other = (self._read(row).id for row in rows_N[place : place + 2].tolist())
            if one == other:
                raise DataError(f"{source} has the id {one!r} twice; ids must be unique")


@dataclass
class _Positions:
    """What is known of the lines of a corpus file; joined digests, 16 bytes a line and 32 bytes a passage."""

    spans: list[Longs] = field(default_factory=list)
    lines: bytearray = field(default_factory=bytearray)
    digests: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class _KnownLines:
    """The lines of an earlier scan: where each is found, and the digests of its passage."""

    table: DigestTable
    passages_N4: Digests

    @classmethod
    def read(cls, folder: Path) -> "_KnownLines | None":
        """`None` where nothing is stored, as in indexes of coseek 0.2."""
        if not ((folder / _LINES).is_file() and (folder / DIGESTS).is_file()):
            return None
        lines_N2, passages_N4 = np.load(folder / _LINES), np.load(folder / DIGESTS)
        return cls(DigestTable(lines_N2), passages_N4) if len(lines_N2) == len(passages_N4) else None


def _scanned(path: Path, known: _KnownLines | None) -> _Positions:
    """The positions of every line that is not blank."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the path")
    found = _Positions()
    at, number = 0, 1
    with path.open("rb") as file:
        while lines := list(islice(file, _CHUNK_LINES)):
            spans_B2 = _spans(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)), at)
            filled = [place for place, line in enumerate(lines) if not line.isspace()]
            joined = b"".join([_line_digest(lines[place]) for place in filled])
            rows = [-1] * len(filled) if known is None else known.table.rows(as_digests(joined, 2)).tolist()
            for place, row in zip(filled, rows, strict=True):
                if known is not None and row >= 0:
                    found.digests += known.passages_N4[row].data
                else:
                    found.digests += passage_digest(_passage(lines[place], f"{path}, line {number + place}"))
            found.spans.append(spans_B2[filled])
            found.lines += joined
            at, number = int(spans_B2[-1, 1]), number + len(lines)
    return found


def _passage(line: bytes, where: str) -> Passage:
    row = parse_line(line, where)
    try:
        return Passage.from_json(row)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _written(path: Path, passages: Iterable[Passage]) -> _Positions:
    """Write each passage as a line."""
    found, lengths = _Positions(), array("q")
    with path.open("wb") as file:
        for passage in passages:
            line = json_line(passage.to_json()).encode()
            lengths.append(file.write(line))
            found.lines += _line_digest(line)
            found.digests += passage_digest(passage)
    found.spans.append(_spans(np.frombuffer(lengths, dtype=np.int64), 0))
    return found


def _spans(lengths_B: Longs, at: int) -> Longs:
    """Start and end of pieces that follow each other from `at` on."""
    ends_B = at + np.cumsum(lengths_B)
    return np.stack([ends_B - lengths_B, ends_B], axis=1)


def _line_digest(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()[:16]


def _hashes(ids_N2: Digests) -> Longs:
    """A 63-bit hash of each id, so that hash + 1 fits into int64."""
    return (ids_N2[:, 0].view(np.uint64) >> np.uint64(1)).astype(np.int64)
