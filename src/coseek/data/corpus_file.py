"""A corpus that stays on disk, with 32 memory-mapped bytes a passage; passages are read on access.

`scan` reads the file once, `keep` stores positions and digests, and `open` uses them. `rescan` parses only the lines
that an earlier scan did not meet: hashing a line takes a tenth of the time of parsing it. A line that is read is
compared with its digest, so that no passage is served that was written after the scan.
"""

import hashlib
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast, overload

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, DiskFault, IndexMismatch
from coseek.core.files import json_line, parse_line, read_json, write_json
from coseek.data.array_file import read_array
from coseek.data.corpus_scan import LINES, KnownLines, LinePositions, line_digest, scan_lines
from coseek.data.digest_table import Digests, as_digests, stable_order
from coseek.data.passage import Corpus, Passage, id_digest, passage_digest

Longs = NDArray[np.int64]

SPANS, IDS = "spans.npy", "ids.npy"
"""The files with the positions of lines and of ids."""
STAMP = "corpus.json"
"""The file with the stamp of a corpus file: what `open` compares."""
_RACE_NS = 2_000_000_000
"""Coarsest time stamps of file systems: a file this young at its scan may change without a new time."""


def _stamp(path: Path) -> dict[str, int]:
    """Size in bytes and times, to recognise a scanned file without reading it. Programs may set the time of the
    modification, not that of the change."""
    found = path.stat()
    return {"size": found.st_size, "modified_ns": found.st_mtime_ns, "changed_ns": found.st_ctime_ns}


def _is_kept(stamp: dict[str, int], folder: Path) -> bool:
    """Whether a stamp is the one in `folder`, which was written long enough after the last change."""
    kept = folder / STAMP
    try:
        row = read_json(kept)
    except DataError:
        return False
    latest = max(value for name, value in stamp.items() if name != "size")
    return row == stamp and kept.stat().st_mtime_ns >= latest + _RACE_NS


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
        self._passages_N4: Digests | None = None
        self._lines_N2: Digests | None = None
        """The digest of each line, as far as known."""
        self.known_N: Longs | None = None
        """After `rescan`: the row of each line in the earlier state, −1 for a new one."""
        self._positions = LinePositions()
        """Empty, as `_passages_N4`, for a corpus that was opened without reading it, or written."""
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def digests(self) -> bytes:
        return super().digests if self._passages_N4 is None else self._passages_N4.tobytes()

    @classmethod
    def scan(cls, path: Path) -> "CorpusFile":
        """Read the file once, for the positions of its lines and its digest. Raises `DataError` for repeated ids."""
        return cls._scanned(path, None)

    @classmethod
    def rescan(cls, path: Path, folder: Path) -> "CorpusFile":
        """Scan a file of which an earlier state was kept in `folder`; lines that were there are not parsed."""
        return cls._scanned(path, KnownLines.read(folder))

    @classmethod
    def write(cls, path: Path, passages: Iterable[Passage], source: str) -> "CorpusFile":
        """Write passages as they come, in 24 bytes of memory each. Raises `DataError` for repeated ids and for none,
        naming `source`."""
        spans, ids, sha, end = array("q"), array("q"), hashlib.sha256(), 0
        with path.open("wb") as file:
            for passage in passages:
                start, end = end, end + file.write(json_line(passage.to_json()).encode())
                spans.extend((start, end))
                digest = passage_digest(passage)
                ids.frombytes(digest[:8])
                sha.update(digest)
        spans_N2 = np.frombuffer(spans, dtype=np.int64).reshape(-1, 2)
        return cls._located(path, spans_N2, np.frombuffer(ids, dtype=np.int64), sha.hexdigest(), source)

    @classmethod
    def _scanned(cls, path: Path, known: KnownLines | None) -> "CorpusFile":
        stamp = _stamp(path) if path.is_file() else {}  # before the scan: a change during it is noticed
        positions = scan_lines(path, known)
        spans_N2 = np.concatenate([np.zeros((0, 2), dtype=np.int64), *positions.spans])
        passages_N4 = np.concatenate([np.zeros((0, 4), dtype=np.int64), *positions.passages])
        positions.spans, positions.passages = [], []
        digest = hashlib.sha256(passages_N4.data).hexdigest()
        made = cls._located(path, spans_N2, passages_N4[:, 0], digest, str(path))
        made._passages_N4, made._positions, made._stamp = passages_N4, positions, stamp
        made._lines_N2 = positions.joined_lines()
        made.known_N, positions.known = np.concatenate([np.zeros(0, dtype=np.int64), *positions.known]), []
        return made

    @classmethod
    def _located(cls, path: Path, spans_N2: Longs, ids_N: Longs, digest: str, source: str) -> "CorpusFile":
        """`ids_N`: the first half of the digest of each id."""
        if not len(spans_N2):
            raise DataError(f"{source} is empty; it needs at least one passage")
        hashes_N = _hashes(ids_N)
        order_N = stable_order(hashes_N)
        made = cls(path, spans_N2, np.stack([hashes_N[order_N], order_N], axis=1), digest, _stamp(path))
        made._check_unique(source)
        return made

    @classmethod
    def open(cls, path: Path, folder: Path, digest: str) -> "CorpusFile":
        """Open a corpus with the positions in `folder`. A file that may have changed is scanned again; if it has not,
        its new stamp is stored."""
        stamp = _stamp(path)
        names = (SPANS, IDS, LINES)
        if not all((folder / name).is_file() for name in names[:2]):
            raise DataError(f"{folder} lacks the positions of its passages; rebuild it with `coseek index`")
        spans_N2, hashes_N2, *lines = (
            cast(Longs, read_array(folder / name, "i", 2, mapped="r")) for name in names if (folder / name).is_file()
        )
        if not _is_kept(stamp, folder):
            again = cls.rescan(path, folder)
            # Passages that moved inside the file or were written in another form leave the digest as it was.
            same = zip((again._spans_N2, again._lines_N2), (spans_N2, *lines), strict=False)
            if again.digest != digest or not all(now is not None and np.array_equal(now, then) for now, then in same):
                return again
            stamp = again._stamp
            with suppress(OSError):  # a folder that cannot be written to costs a scan at each opening
                write_json(folder / STAMP, {**stamp})
        made = cls(path, spans_N2, hashes_N2, digest, stamp)
        made._lines_N2 = lines[0] if lines else None
        return made

    def keep(self, folder: Path) -> None:
        """Store the positions in `folder` for `open`, and the digests of the lines for `rescan`."""
        np.save(folder / SPANS, self._spans_N2)
        self._positions.keep(folder)
        np.save(folder / IDS, self._hashes_N2)
        write_json(folder / STAMP, {**self._stamp})

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
        wanted = int(_hashes(as_digests(id_digest(ident), 2)[:, 0])[0])
        hashes_N = self._hashes_N2[:, 0]
        first, last = np.searchsorted(hashes_N, [wanted, wanted + 1])
        for row in self._hashes_N2[first:last, 1].tolist():
            passage = self._read(row)
            if passage.id == ident:
                yield passage

    def _read(self, row: int) -> Passage:
        if (parsed := self._positions.parsed.get(row)) is not None:
            return parsed
        start, end = self._spans_N2[row].tolist()
        line = os.pread(self._handle, end - start, start)
        if self._lines_N2 is not None and line_digest(line) != self._lines_N2[row].tobytes():
            raise IndexMismatch(
                f"passage {row} of {self.path} has changed since the corpus was read; bring the index up to date with "
                "`coseek index --update`"
            )
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


def _hashes(ids_N: Longs) -> Longs:
    """A 63-bit hash of each id, so that hash + 1 fits into int64."""
    return (ids_N.view(np.uint64) >> np.uint64(1)).astype(np.int64)
