"""A corpus that stays on disk, with 32 memory-mapped bytes a passage; passages are read on access.

`scan` reads the file once, `keep` stores positions and digests, and `open` uses them. `rescan` parses only the lines
that an earlier scan did not meet: hashing a line takes a tenth of the time of parsing it. A line that is read is
compared with its digest, so that no passage is served that was written after the scan. Hashing many lines at once takes
less still, so lines are hashed in groups first: what an earlier scan met as a group is not looked into.

N rows of a digest table · M digests that are looked up · B lines of a piece of the file that are not blank · G groups
of them. A digest is two int64 numbers.
"""

import hashlib
import os
import tokenize
import weakref
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, DiskFault, IndexMismatch
from coseek.core.files import json_line, parse_line, read_json, write_json
from coseek.data.passage import Corpus, Passage, id_digest, passage_digest

# A header is a Python literal of any content, and may ask for any amount of memory.
UNREADABLE = (
    OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError, TypeError, LookupError, OverflowError, MemoryError,
    DeprecationWarning,
)  # fmt: skip
"""What numpy raises for a broken file; the last for an old name of a type, where warnings are errors."""
WAY_OUT = "rebuild the index with `coseek index`"
_BEGINS = b"\x93NUMPY"


def read_array(
    path: Path, kind: Literal["i", "f"], columns: int | None = None, *, mapped: Literal["r", "c"] | None = None
) -> NDArray[np.generic]:
    """The array of a file: integers (`i`) or floats (`f`), one-dimensional or of so many columns. `mapped` leaves it on
    disk, read-only or copied on write. Raises `DataError` for anything else."""
    try:
        with path.open("rb") as file:
            if file.read(len(_BEGINS)) != _BEGINS:  # numpy would propose to unpickle it
                raise ValueError("it begins as something else")
        found: object = np.load(path, mmap_mode=mapped, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {WAY_OUT}") from None
    except UNREADABLE as error:
        said = (str(error) or type(error).__name__).splitlines()[0][:120]
        raise DataError(f"{path} is no whole array ({said}); {WAY_OUT}") from None
    assert isinstance(found, np.ndarray)
    shape = (len(found),) if found.ndim and columns is None else (len(found) if found.ndim else 0, columns)
    if found.dtype.kind not in ("iu" if kind == "i" else kind) or found.shape != shape:
        raise DataError(f"{path} holds {found.dtype} {found.shape}, which no index writes there; {WAY_OUT}")
    # A plain view of a mapped file: slices of np.memmap cost microseconds each.
    return np.asarray(found)


Digests = NDArray[np.int64]
Longs = NDArray[np.int64]


class DigestTable:
    """The rows of N digests."""

    def __init__(self, digests_N2: Digests) -> None:
        self._digests_N2 = digests_N2
        keys_N = np.ascontiguousarray(digests_N2[:, 0])
        self._order_N = stable_order(keys_N)
        self._sorted_N = keys_N[self._order_N]

    def rows(self, digests_M2: Digests) -> NDArray[np.int64]:
        """The first row of each digest, −1 for one that is not there."""
        if not len(self._sorted_N):
            return np.full(len(digests_M2), -1)
        places_M = np.minimum(np.searchsorted(self._sorted_N, digests_M2[:, 0]), len(self._sorted_N) - 1)
        met = np.flatnonzero(self._sorted_N[places_M] == digests_M2[:, 0])
        # Two digests that share their first half may hide one another, which costs work and no result.
        met = met[self._digests_N2[self._order_N[places_M[met]], 1] == digests_M2[met, 1]]
        rows_M = np.full(len(digests_M2), -1)
        rows_M[met] = self._order_N[places_M[met]]
        return rows_M


def first_rows(digests_N2: Digests, digests_M2: Digests) -> NDArray[np.int64]:
    """The first row of each of M digests among N, −1 for one that is not there; without a table of the N, so cheaper
    than `DigestTable` for a few digests."""
    few = DigestTable(digests_M2)
    found_N = few.rows(digests_N2)
    met_N = np.flatnonzero(found_N >= 0)[::-1]
    rows_M = np.full(len(digests_M2), -1)
    rows_M[found_N[met_N]] = met_N  # of several the first row is written last
    own_M = few.rows(digests_M2)  # −1 for one that is hidden
    return np.where(own_M >= 0, rows_M[own_M], -1)


def stable_order(keys_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stable `argsort`. Where all keys differ, as those of digests do, any order is stable, and the default sort of
    numpy is several times faster."""
    order_N = np.argsort(keys_N)
    sorted_N = keys_N[order_N]
    return order_N if (sorted_N[1:] != sorted_N[:-1]).all() else np.argsort(keys_N, kind="stable")


def as_digests(data: bytes | bytearray, width: int) -> Digests:
    """Joined digests as rows of `width` int64 numbers."""
    return np.frombuffer(data, dtype=np.int64).reshape(-1, width)


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

    def _at(self, row: int) -> Passage:
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
