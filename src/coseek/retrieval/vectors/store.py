"""Vector store: an N × D array on disk, in shards that are memory-mapped.

    store.json          rows, dimension, number type, rows per shard
    shard-00000.npy     the rows, each shard a numpy file
    norms.npy           the Euclidean norm of every row
    progress.json       the number of rows written, while the store is incomplete

Files have their final headers from the start and grow at the end. A writer that was killed continues at the row in
`progress.json`, and the final bytes are the same.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError
from coseek.core.files import parsing, read_json_object, write_json
from coseek.core.record import Record, Schema
from coseek.data.corpus_file import read_array

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float16]
Rows: TypeAlias = NDArray[np.int64]
FloatName: TypeAlias = Literal["float32", "float16"]

SCHEMA = 1
SHARD_ROWS = 262_144
_CARD, _PROGRESS, _NORMS = "store.json", "progress.json", "norms.npy"


@dataclass(frozen=True, slots=True)
class _Card(Record):
    """The contents of `store.json`."""

    SCHEMA = Schema(SCHEMA, "a store of vectors", "; rebuild the index")

    rows: int
    dim: int
    dtype: FloatName
    shard_rows: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.dim < 1 or self.shard_rows < 1:
            raise DataError(f"vectors need at least one row, one dimension and one row per shard, not {self}")

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    def rows_of(self, shard: int) -> int:
        return min(self.shard_rows, self.rows - shard * self.shard_rows)

    @classmethod
    def read(cls, folder: Path) -> "_Card":
        with parsing(folder / _CARD, "rebuild the index"):
            return cls.from_json(read_json_object(folder / _CARD))


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.npy"


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of a numpy file of that shape."""
    file = io.BytesIO()
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {"descr": description, "fortran_order": False, "shape": shape})
    return file.getvalue()


class VectorStore:
    """A complete store. Blocks are views: rows that are not used are not read."""

    def __init__(self, shards: Sequence[Floats], norms_N: NDArray[np.float64], folder: Path | None = None) -> None:
        self.folder = folder
        self.norms_N = norms_N
        """The Euclidean norm of every row, accurate to a few units in the last place."""
        self._shards = shards
        self._starts = np.cumsum([0] + [len(shard) for shard in shards])

    @classmethod
    def open(cls, folder: Path) -> "VectorStore":
        """Map the shards of a folder. An incomplete or truncated store is a `DataError`."""
        card = _Card.read(folder)
        if (folder / _PROGRESS).exists():
            raise DataError(f"the vectors in {folder} are not complete; repeat the command that started them")
        shards: list[Floats] = [
            cast(NDArray[np.float32], mapped(_shard(folder, number), card.dtype, (card.rows_of(number), card.dim)))
            for number in range(card.shards)
        ]
        norms_N = cast(NDArray[np.float64], mapped(folder / _NORMS, "float64", (card.rows,)))
        return cls(shards, norms_N, folder)

    @classmethod
    def of(cls, vectors_ND: Floats) -> "VectorStore":
        """A store of vectors in memory."""
        if vectors_ND.ndim != 2 or not vectors_ND.size or vectors_ND.dtype.name not in ("float32", "float16"):
            raise DataError(f"vectors are float32 or float16 rows, not {vectors_ND.dtype} {vectors_ND.shape}")
        rows_ND = cast(NDArray[np.float32], np.ascontiguousarray(vectors_ND))
        return cls([rows_ND], row_norms(rows_ND))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def dim(self) -> int:
        return int(self._shards[0].shape[1])

    @property
    def dtype(self) -> FloatName:
        return "float16" if self._shards[0].dtype == np.float16 else "float32"

    def part(self, first: int, last: int) -> "VectorStore":
        """The rows from `first` up to `last`, as views."""
        shards: list[Floats] = []
        for start, shard in zip(self._starts.tolist(), self._shards, strict=False):
            rows = shard[max(0, first - start) : max(0, last - start)]
            shards += [rows] if len(rows) else []
        return VectorStore(shards, self.norms_N[first:last])

    def blocks(self, rows: int) -> Iterator[tuple[int, Floats]]:
        """Yield `(first row, vectors_BD)` of at most `rows` rows, in order; a block ends where its shard ends."""
        for first, shard in zip(self._starts.tolist(), self._shards, strict=False):
            for start in range(0, len(shard), rows):
                yield first + start, shard[start : start + rows]

    def rows(self, first: int, last: int) -> Floats:
        """The vectors from row `first` up to `last`; a view if they are in one shard."""
        shards = self.part(first, last)._shards
        return shards[0] if len(shards) == 1 else cast(NDArray[np.float32], np.concatenate(shards))

    @property
    def fingerprint(self) -> str:
        """A digest of the shape and of up to 1,024 rows spread over the store."""
        rows = np.unique(np.linspace(0, len(self) - 1, 1_024).astype(np.int64))
        sha = hashlib.sha256(f"{len(self)} {self.dim} {self.dtype}".encode())
        sha.update(self.gather(rows).tobytes() + self.norms_N[rows].tobytes())
        return sha.hexdigest()

    def gather(self, rows_M: Rows) -> Floats:
        """The vectors of some rows, in the given order; ascending rows are fastest."""
        if len(self._shards) == 1:
            return self._shards[0].take(rows_M, axis=0)
        vectors_MD = np.empty((len(rows_M), self.dim), dtype=self.dtype)
        shards_M = np.searchsorted(self._starts, rows_M, side="right") - 1
        for number in np.flatnonzero(np.bincount(shards_M)).tolist():
            in_shard = np.flatnonzero(shards_M == number)
            vectors_MD[in_shard] = self._shards[number].take(rows_M[in_shard] - self._starts[number], axis=0)
        return vectors_MD


def row_norms(vectors_BD: Floats, first: int = 0) -> NDArray[np.float64]:
    """Euclidean norms, in float64. A number that is not finite is a `DataError` with its row, counted from `first`."""
    step = max(1, 1_000_000 // vectors_BD.shape[1])
    norms_B = np.empty(len(vectors_BD), dtype=np.float64)
    for start in range(0, len(vectors_BD), step):
        wide = vectors_BD[start : start + step].astype(np.float64)
        norms_B[start : start + step] = np.sqrt((wide * wide).sum(axis=1))
    if not np.isfinite(norms_B).all():
        row = int(np.flatnonzero(~np.isfinite(norms_B))[0])
        raise DataError(f"vector {first + row} holds a number that is not finite; check the encoder and its passage")
    return norms_B


def mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Map a numpy file. A missing file, or one of another type or shape, is a `DataError`."""
    columns = shape[1] if len(shape) == 2 else None
    # Mode c shares the file's pages, and torch accepts the array because it is writable.
    array = read_array(path, "i" if np.dtype(dtype).kind == "i" else "f", columns, mapped="c")
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise DataError(f"{path} holds {array.dtype} {array.shape}, not {dtype} {shape}; rebuild the index")
    return array


class VectorWriter:
    """Writes a store from its first row to its last, resumably. `rows`, `dim`, `dtype` and `shard_rows` describe the
    complete store. If the folder has the beginning of such a store, `written` rows exist and the next `append`
    continues after them."""

    def __init__(
        self, folder: Path, rows: int, dim: int, dtype: FloatName = "float32", shard_rows: int = SHARD_ROWS
    ) -> None:
        self.folder = folder
        self._card = _Card(rows, dim, dtype, shard_rows)
        self.written = self._resume() if (folder / _CARD).exists() else self._begin()

    def append(self, vectors_BD: NDArray[np.float32]) -> None:
        """Append rows and flush them to disk. A float16 store rounds."""
        card = self._card
        with np.errstate(over="ignore"):  # `row_norms` raises for infinite values
            block_BD = cast(NDArray[np.float32], np.ascontiguousarray(vectors_BD, dtype=card.dtype))
        norms_B = row_norms(block_BD, self.written)
        appended = 0
        while appended < len(block_BD):
            shard, offset = divmod(self.written + appended, card.shard_rows)
            rows_BD = block_BD[appended : appended + card.rows_of(shard) - offset]
            header = _header(card.dtype, (card.rows_of(shard), card.dim))
            _append(_shard(self.folder, shard), header, offset * card.dim * rows_BD.itemsize, rows_BD.tobytes())
            appended += len(rows_BD)
        _append(self.folder / _NORMS, _header("float64", (card.rows,)), self.written * 8, norms_B.tobytes())
        self.written += len(block_BD)
        write_json(self.folder / _PROGRESS, {"rows": self.written})

    def finish(self) -> VectorStore:
        """Mark the store as complete and open it."""
        if self.written != self._card.rows:
            raise DataError(f"{self.written} of {self._card.rows} vectors are written; the rest is missing")
        (self.folder / _PROGRESS).unlink(missing_ok=True)
        return VectorStore.open(self.folder)

    def _begin(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / _PROGRESS, {"rows": 0})
        write_json(self.folder / _CARD, self._card.to_json())
        return 0

    def _resume(self) -> int:
        if _Card.read(self.folder) != self._card:
            raise DataError(f"{self.folder} holds other vectors than {self._card}; choose another folder or delete it")
        if not (self.folder / _PROGRESS).exists():
            return self._card.rows
        return cast(int, read_json_object(self.folder / _PROGRESS)["rows"])


def _append(path: Path, header: bytes, offset: int, data: bytes) -> None:
    """Truncate a file to `header` and `offset` bytes, append `data`, and flush to disk."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        # Removes what a killed writer left after the counted rows, such as an incomplete header.
        file.truncate(len(header) + offset if offset else 0)
        file.seek(0, os.SEEK_END)
        if not offset:
            file.write(header)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
