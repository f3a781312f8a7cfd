"""Faiss index: builds, stores and searches the faiss indexes of `hnsw` and `ivf-pq`.

Importing this module does not import faiss. Its number of threads follows OMP_NUM_THREADS.

Graphs and cells assume that a vector's neighbours are those with the largest inner products, which holds for vectors of
equal length. Other vectors get one more dimension that raises all lengths to the longest one's, with 0 in queries, so
that inner products do not change (Bachrach et al., RecSys 2014).
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coseek.core.errors import DataError, DiskFault
from coseek.core.files import sync
from coseek.retrieval.index_files import Report
from coseek.retrieval.vectors.corpus_encoding import begin
from coseek.retrieval.vectors.embedding_retriever import E, Rows, in_order
from coseek.retrieval.vectors.encoder import EncoderCard, Vectors, encoder_folder
from coseek.retrieval.vectors.store import Floats, VectorStore

if TYPE_CHECKING:
    import faiss

VECTORS = "vectors"
"""The folder of the passage vectors inside an index."""
BLOCK_ROWS = 65_536
"""Rows added to faiss per call."""
_QUERIES_PER_CALL = 16
"""Queries per faiss call. From 20 on faiss multiplies matrices, and the last digit depends on the batch."""


class Lift:
    """Pads vectors to equal length and to `dim` dimensions, a multiple of `multiple`; `unit` scales the length to 1."""

    def __init__(self, store: VectorStore, normalised: bool, *, multiple: int = 1, unit: bool = False) -> None:
        self._store = store
        # At least the smallest normal number, to avoid a division by 0 for all-zero vectors.
        self._longest = None if normalised else max(float(store.norms_N.max()), 2.0**-126)
        self._divisor = self._longest if unit and self._longest is not None else 1.0
        self.dim = -(-(store.dim + (not normalised)) // multiple) * multiple

    def rows(self, rows_M: Rows) -> Vectors:
        """Padded rows (M × `dim`) for ascending row numbers."""
        lifted_ME = widened(self._store.gather(rows_M), self.dim)
        if self._longest is not None:
            norms_M = self._store.norms_N[rows_M]
            lifted_ME[:, self._store.dim] = np.sqrt(np.maximum(self._longest**2 - norms_M**2, 0.0))
            lifted_ME /= self._divisor
        return lifted_ME


def widened(vectors_BD: Floats, dim: int) -> Vectors:
    """Copy vectors as float32, padded with zeros to `dim` dimensions."""
    wide_BE = np.zeros((len(vectors_BD), dim), dtype=np.float32)
    wide_BE[:, : vectors_BD.shape[1]] = vectors_BD
    return wide_BE


def add_all(index: "faiss.Index", store: VectorStore, lift: Lift, report: Report, what: str) -> None:
    """Add all vectors to an index, block by block."""
    total = len(store)
    for start in range(0, total, BLOCK_ROWS):
        rows_B = np.arange(start, min(start + BLOCK_ROWS, total))
        report(what, start, total)
        index.add(lift.rows(rows_B))
    report(what, total, total)


def build_file(
    settings: E,
    path: Path,
    encode: Callable[[Path], VectorStore],
    make: Callable[[VectorStore, E, bool, Report], "faiss.Index"],
    report: Report,
    *,
    keep_vectors: bool,
) -> None:
    """Build an index and write it to `path`. Continues an earlier build. `encode(folder)` writes the vectors;
    `make(store, settings, normalised, report)` builds the index; `normalised` says that all vectors have length 1."""
    begin(settings, path.parent)
    vectors = path.parent / VECTORS
    if not path.exists():
        normalised = EncoderCard.of(encoder_folder(settings.encoder)).normalise
        write_file(make(encode(vectors), settings, normalised, report), path)
    if vectors.exists() and not keep_vectors:
        shutil.rmtree(vectors)


def write_file(index: "faiss.Index", path: Path) -> None:
    """Write an index atomically."""
    import faiss

    temporary = path.with_name(f"{path.name}.part")
    try:
        faiss.write_index(index, str(temporary))
    except RuntimeError as error:
        temporary.unlink(missing_ok=True)
        reason = str(error).rpartition("failed: ")[2].strip()
        raise DiskFault(f"{reason}; the vectors are kept: free some space and repeat the same command") from None
    sync(temporary)
    temporary.replace(path)


def open_file(path: Path) -> "faiss.Index":
    """Open an index file, memory-mapped. A broken file is a `DataError`."""
    import faiss

    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:
        raise DataError(f"{path} cannot be read by this faiss {faiss.__version__}; rebuild the index") from None


class FileVectors:
    """The vectors inside an index that stores them whole."""

    def __init__(self, path: Path, normalised: bool) -> None:
        self._index = open_file(path)
        self.dim = self._index.d - (not normalised)  # without what `Lift` adds
        """Dimensions of the encoder."""

    def gather(self, rows_M: Rows) -> Vectors:
        """The vectors of some rows (M × `dim`)."""
        return self._index.reconstruct_batch(rows_M)[:, : self.dim]


def search_file(index: "faiss.Index", queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]:
    """The `k` best rows and scores per query, ties by row; −1 for missing rows."""
    wide_QE = widened(queries_QD, index.d)
    scores_QK = np.empty((len(wide_QE), k), dtype=np.float32)
    rows_QK = np.empty((len(wide_QE), k), dtype=np.int64)
    for start in range(0, len(wide_QE), _QUERIES_PER_CALL):
        batch = slice(start, start + _QUERIES_PER_CALL)
        scores_QK[batch], rows_QK[batch] = index.search(wide_QE[batch], k)
    return in_order(rows_QK, scores_QK)
