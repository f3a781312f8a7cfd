"""A corpus that stays on disk, with 64 memory-mapped bytes per passage; passages are read on access.

`scan` reads the file once, `keep` stores positions and digests, and `open` uses them. Each passage is compared with its
digest when it is read, so that changes after the scan are noticed.

N rows of a table of digests · M digests to look up. The digest of an id or of a content is two int64 numbers; that of a
passage is both.
"""

import hashlib
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, IndexMismatch
from coseek.core.files import json_line, parse_line, parse_row, read_json, write_json
from coseek.data.passage import Corpus, Passage, id_digest, passage_digest

WAY_OUT = "rebuild the index with `coseek index`"
_BEGINS = b"\x93NUMPY"


def read_array(
    path: Path, kind: Literal["i", "f"], columns: int | None = None, *, mapped: Literal["r", "c"] | None = None
) -> NDArray[np.generic]:
    """Load an array of integers (`i`) or floats (`f`), one-dimensional or with `columns` columns. `mapped` leaves it on
    disk, read-only or copied on write. Raises `DataError` for anything else."""
    try:
        with path.open("rb") as file:
            if file.read(len(_BEGINS)) != _BEGINS:  # numpy would propose to unpickle it
                raise ValueError("it is not a .npy file")
        loaded: object = np.load(path, mmap_mode=mapped, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {WAY_OUT}") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a whole array ({str(error)[:120]}); {WAY_OUT}") from None
    assert isinstance(loaded, np.ndarray)
    has_shape = loaded.ndim and loaded.shape[1:] == (() if columns is None else (columns,))
    if loaded.dtype.kind not in ("iu" if kind == "i" else kind) or not has_shape:
        raise DataError(f"{path} holds {loaded.dtype} {loaded.shape}, which no index writes there; {WAY_OUT}")
    # A plain view of a mapped file: slices of np.memmap cost microseconds each.
    return np.asarray(loaded)


Digests = NDArray[np.int64]
Longs = NDArray[np.int64]


def first_rows(digests_N2: Digests, digests_M2: Digests) -> NDArray[np.int64]:
    """The first row of each of M digests among N, −1 for a missing digest."""
    order_N = np.argsort(digests_N2[:, 0], kind="stable")
    sorted_N = digests_N2[order_N, 0]
    positions_M = np.minimum(np.searchsorted(sorted_N, digests_M2[:, 0]), len(sorted_N) - 1)
    # Digests with the same first half may hide one another: the passage is then indexed again, with the same result.
    is_same_M = (digests_N2[order_N[positions_M]] == digests_M2).all(axis=1)
    return np.where(is_same_M, order_N[positions_M], -1)


def as_digests(data: bytes | bytearray, width: int) -> Digests:
    """Joined digests as rows of `width` int64 numbers."""
    return np.frombuffer(data, dtype=np.int64).reshape(-1, width)


DIGESTS = "digests.npy"
"""The file with the digests of the passages of a corpus, N × 4 int64: id, then content."""
SPANS, IDS = "spans.npy", "ids.npy"
"""The files with the positions of lines and of ids."""
STAMP = "corpus.json"
"""The file with the stamp of a corpus file, which `open` compares."""
_RACE_NS = 2_000_000_000
"""Coarsest time stamps of file systems. A file that is younger than this when scanned may change within one stamp."""


def _stamp(path: Path) -> dict[str, int]:
    """Size in bytes and times, to recognise a scanned file without reading it. Programs can set the modification time,
    but not the change time."""
    stat = path.stat()
    return {"size": stat.st_size, "modified_ns": stat.st_mtime_ns, "changed_ns": stat.st_ctime_ns}


def _is_kept(stamp: dict[str, int], folder: Path) -> bool:
    """Whether `folder` holds this stamp, written long enough after the last change."""
    stamp_path = folder / STAMP
    with suppress(DataError):
        latest_ns = max(stamp["modified_ns"], stamp["changed_ns"])
        return read_json(stamp_path) == stamp and stamp_path.stat().st_mtime_ns >= latest_ns + _RACE_NS
    return False


class CorpusFile(Corpus):
    """A `corpus.jsonl` on disk, not gzipped. The file stays open, so that a file that replaces it is not read."""

    def __init__(
        self, path: Path, spans_N2: Longs, hashes_N2: Longs, digests_N4: Digests, digest: str, stamp: dict[str, int]
    ) -> None:
        """`spans_N2`: start and end byte of each line. `hashes_N2`: hash and row of each id, by rising hash."""
        self.path = path
        self._digest = digest
        self._stamp = stamp
        self._spans_N2 = spans_N2
        self._hashes_N2 = hashes_N2
        self._digests_N4 = digests_N4
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def digests(self) -> bytes:
        return self._digests_N4.tobytes()

    @classmethod
    def scan(cls, path: Path) -> "CorpusFile":
        """Read the file once to locate its lines and compute its digest. Raises `DataError` for repeated ids."""
        if not path.is_file():
            raise DataError(f"there is no file {path}; check the path")
        stamp = _stamp(path)  # before the scan: a change during it is noticed
        spans, digests, end = array("q"), bytearray(), 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                start, end = end, end + len(line)
                if not line.isspace():
                    where = f"{path}, line {number}"
                    spans.extend((start, end))
                    digests += passage_digest(parse_row(parse_line(line, where), Passage.from_json, where))
        return cls._from_spans(path, spans, digests, stamp, str(path))

    @classmethod
    def write(cls, path: Path, passages: Iterable[Passage], source: str) -> "CorpusFile":
        """Write passages one by one, with 48 bytes of memory for each. Raises `DataError`, which names `source`, for
        repeated ids and without passages."""
        spans, digests, end = array("q"), bytearray(), 0
        with path.open("wb") as file:
            for passage in passages:
                start, end = end, end + file.write(json_line(passage.to_json()).encode())
                spans.extend((start, end))
                digests += passage_digest(passage)
        return cls._from_spans(path, spans, digests, _stamp(path), source)

    @classmethod
    def _from_spans(
        cls, path: Path, spans: "array[int]", digests: bytearray, stamp: dict[str, int], source: str
    ) -> "CorpusFile":
        if not spans:
            raise DataError(f"{source} is empty; it needs at least one passage")
        spans_N2, digests_N4 = np.frombuffer(spans, dtype=np.int64).reshape(-1, 2), as_digests(digests, 4)
        hashes_N = _hashes(digests_N4[:, 0])
        order_N = np.argsort(hashes_N, kind="stable")
        hashes_N2 = np.stack([hashes_N[order_N], order_N], axis=1)
        corpus = cls(path, spans_N2, hashes_N2, digests_N4, hashlib.sha256(digests).hexdigest(), stamp)
        for index in np.flatnonzero(hashes_N2[1:, 0] == hashes_N2[:-1, 0]).tolist():
            # Equal hashes are adjacent; three equal ones make two pairs.
            ident, next_ident = (corpus[row].id for row in order_N[index : index + 2].tolist())
            if ident == next_ident:
                raise DataError(f"{source} has the id {ident!r} twice; ids must be unique")
        return corpus

    @classmethod
    def open(cls, path: Path, folder: Path, digest: str) -> "CorpusFile":
        """Open a corpus with the positions in `folder`. A file that may have changed is scanned again; if it has not
        changed, its new stamp is stored."""
        stamp = _stamp(path)
        columns = {SPANS: 2, IDS: 2, DIGESTS: 4}
        if not all((folder / name).is_file() for name in columns):
            raise DataError(f"{folder} lacks the positions of its passages; rebuild it with `coseek index`")
        spans_N2, hashes_N2, digests_N4 = (
            cast(Longs, read_array(folder / name, "i", width, mapped="r")) for name, width in columns.items()
        )
        if not _is_kept(stamp, folder):
            rescanned = cls.scan(path)
            # Passages that moved within the file or were written in another form do not change the digest.
            if rescanned.digest != digest or not np.array_equal(rescanned._spans_N2, spans_N2):
                return rescanned
            stamp = rescanned._stamp
            with suppress(OSError):  # a folder that cannot be written to costs a scan at each opening
                write_json(folder / STAMP, {**stamp})
        return cls(path, spans_N2, hashes_N2, digests_N4, digest, stamp)

    def keep(self, folder: Path) -> None:
        """Store positions and digests in `folder` for `open`."""
        np.save(folder / SPANS, self._spans_N2)
        np.save(folder / IDS, self._hashes_N2)
        np.save(folder / DIGESTS, self._digests_N4)
        write_json(folder / STAMP, {**self._stamp})

    def __len__(self) -> int:
        return len(self._spans_N2)

    def _passage_at(self, row: int) -> Passage:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a corpus of {len(self)} passages")
        return self._read(row % len(self))

    def __iter__(self) -> Iterator[Passage]:
        return map(self._read, range(len(self)))

    def by_id(self, ident: str) -> Passage:
        if (passage := self._find(ident)) is None:
            raise KeyError(ident)
        return passage

    def has(self, ident: str) -> bool:
        return self._find(ident) is not None

    def _find(self, ident: str) -> Passage | None:
        """The passage with this id, if any; ids with the same hash are compared."""
        id_hash = int(_hashes(as_digests(id_digest(ident), 2)[:, 0])[0])
        first, last = np.searchsorted(self._hashes_N2[:, 0], [id_hash, id_hash + 1])
        passages = map(self._read, self._hashes_N2[first:last, 1].tolist())
        return next((passage for passage in passages if passage.id == ident), None)

    def _read(self, row: int) -> Passage:
        start, end = self._spans_N2[row].tolist()
        with suppress(DataError):
            passage = Passage.from_json(parse_line(os.pread(self._handle, end - start, start), str(self.path)))
            if passage_digest(passage) == self._digests_N4[row].tobytes():
                return passage
        raise IndexMismatch(
            f"passage {row} of {self.path} has changed since the corpus was read; bring the index up to date with "
            "`coseek index --update`"
        )


def _hashes(ids_N: Longs) -> Longs:
    """A 63-bit hash of each id, so that hash + 1 fits into int64."""
    return (ids_N.view(np.uint64) >> np.uint64(1)).astype(np.int64)
