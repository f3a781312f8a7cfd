"""Faiss index: what `hnsw` and `ivf-pq` share: inner products made safe for graphs and cells, files, searches.

Importing this module does not import faiss. Its number of threads follows OMP_NUM_THREADS, as torch's does.

Graphs and cells presume that a vector's nearest neighbours are those it has the largest inner products with. That holds
for vectors of one length. Where an encoder's vectors have several, each gets one more dimension that fills it up to the
longest one's length, and queries get a 0 there: the inner products stay what they were (Bachrach et al., RecSys 2014).
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coseek.core.errors import DataError, DiskFault
from coseek.data.passage import Corpus
from coseek.retrieval.resumable_build import Report, sync
from coseek.retrieval.vectors.corpus_encoding import begin, encode_corpus
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, Rows, in_order
from coseek.retrieval.vectors.encoder import Vectors
from coseek.retrieval.vectors.store import Floats, VectorStore

if TYPE_CHECKING:
    import faiss

VECTORS = "vectors"
"""Folder of the passages' vectors inside an index."""
BLOCK_ROWS = 65_536
"""Rows given to faiss at a time."""
_TOGETHER = 16
"""Queries given to faiss at a time. From 20 on it multiplies matrices, and the last digit depends on the batch."""


class Lift:
    """Makes a store's vectors equally long where the encoder does not, and fills them up with zeros.

    `dim` is a multiple of `multiple`. `unit` brings the common length to 1, and every score with it.
    """

    def __init__(self, store: VectorStore, normalised: bool, *, multiple: int = 1, unit: bool = False) -> None:
        self._store = store
        # At least the smallest normal number: a store of nothing but zeros is divided by it.
        self._longest = None if normalised else max(float(store.norms_N.max()), 2.0**-126)
        self._divisor = self._longest if unit and self._longest is not None else 1.0
        self.dim = -(-(store.dim + (not normalised)) // multiple) * multiple

    def rows(self, rows_M: Rows) -> Vectors:
        """Some rows (M × `dim`), which must rise."""
        lifted_ME = widened(self._store.gather(rows_M), self.dim)
        if self._longest is not None:
            norms_M = self._store.norms_N[rows_M]
            lifted_ME[:, self._store.dim] = np.sqrt(np.maximum(self._longest**2 - norms_M**2, 0.0))
            lifted_ME /= self._divisor
        return lifted_ME


def widened(vectors_BD: Floats, dim: int) -> Vectors:
    """A float32 copy with zeros in the new dimensions."""
    wide_BE = np.zeros((len(vectors_BD), dim), dtype=np.float32)
    wide_BE[:, : vectors_BD.shape[1]] = vectors_BD
    return wide_BE


def add_all(index: "faiss.Index", store: VectorStore, lift: Lift, report: Report, what: str) -> None:
    """Put all vectors into an index, block by block."""
    total = len(store)
    for start in range(0, total, BLOCK_ROWS):
        rows_B = np.arange(start, min(start + BLOCK_ROWS, total))
        report(what, start, total)
        index.add(lift.rows(rows_B))
    report(what, total, total)


def build_file(
    corpus: Corpus,
    settings: EmbeddingSettings,
    path: Path,
    make: Callable[[VectorStore], "faiss.Index"],
    report: Report,
    *,
    keep_vectors: bool,
) -> None:
    """Encode the corpus, make an index of the vectors, and write it to `path`; goes on with what is there."""
    begin(settings, path.parent)
    vectors = path.parent / VECTORS
    if not path.exists():
        write_file(make(encode_corpus(corpus, settings, vectors, report)), path)
    if vectors.exists() and not keep_vectors:
        shutil.rmtree(vectors)


def write_file(index: "faiss.Index", path: Path) -> None:
    """Write an index; the file appears whole or not at all."""
    import faiss

    part = path.with_name(f"{path.name}.part")
    try:
        faiss.write_index(index, str(part))
    except RuntimeError as error:
        part.unlink(missing_ok=True)
        why = str(error).rpartition("failed: ")[2].strip()
        raise DiskFault(f"{why}; what is encoded is kept: free some space and go on with the same command") from None
    sync(part)
    os.replace(part, path)


def open_file(path: Path, flags: int = 0) -> "faiss.Index":
    """Read what was written; a broken file is refused."""
    import faiss

    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError:
        raise DataError(f"{path} cannot be read by this faiss {faiss.__version__}; make the index anew") from None


def search_file(index: "faiss.Index", queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]:
    """The `k` best rows and scores a query, as far as the index finds them; equal scores by row, −1 for nothing."""
    wide_QE = widened(queries_QD, index.d)
    scores_QK = np.empty((len(wide_QE), k), dtype=np.float32)
    rows_QK = np.empty((len(wide_QE), k), dtype=np.int64)
    for start in range(0, len(wide_QE), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        scores_QK[some], rows_QK[some] = index.search(wide_QE[some], k)
    return in_order(rows_QK, scores_QK)
