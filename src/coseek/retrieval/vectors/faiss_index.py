"""Faiss index: builds, stores and searches the faiss indexes of `hnsw` and `ivf-pq`, and imports published vectors.

Importing this module does not import faiss. Its number of threads follows OMP_NUM_THREADS.

Graphs and cells assume that a vector's neighbours are those with the largest inner products, which holds for vectors of
equal length. Other vectors get one more dimension that raises all lengths to the longest one's, with 0 in queries, so
that inner products do not change (Bachrach et al., RecSys 2014).
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coseek.core.errors import DataError, DiskFault, SettingError
from coseek.core.files import atomic_path
from coseek.data.passage import Corpus
from coseek.retrieval.factory import require_library
from coseek.retrieval.index_files import Report
from coseek.retrieval.vectors.corpus_encoding import QUOTED, encode_corpus, window_encoder
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, in_order, passage_text
from coseek.retrieval.vectors.encoder import EncoderCard, Vectors, encoder_folder
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore, VectorWriter

if TYPE_CHECKING:
    import faiss

VECTORS = "vectors"
"""The folder of the passage vectors inside an index."""
BLOCK_ROWS = 65_536
"""Rows added to faiss, or read from it, per call."""
_QUERIES_PER_CALL = 16
"""Queries per faiss call. From 20 on faiss multiplies matrices, and the last digit depends on the batch."""


class Lift:
    """Pads vectors to equal length and to `dim` dimensions, a multiple of `multiple`; `unit` scales the length to 1."""

    def __init__(self, store: VectorStore, normalised: bool, *, multiple: int = 1, unit: bool = False) -> None:
        self._store = store
        # At least the smallest normal number, to avoid a division by 0 for all-zero vectors.
        self._longest_norm = None if normalised else max(float(store.norms_N.max()), 2.0**-126)
        self._divisor = self._longest_norm if unit and self._longest_norm is not None else 1.0
        self.dim = -(-(store.dim + (not normalised)) // multiple) * multiple

    def rows(self, rows_M: Rows) -> Vectors:
        """Padded rows (M × `dim`) for ascending row numbers."""
        lifted_ME = widened(self._store.gather(rows_M), self.dim)
        if self._longest_norm is not None:
            norms_M = self._store.norms_N[rows_M]
            lifted_ME[:, self._store.dim] = np.sqrt(np.maximum(self._longest_norm**2 - norms_M**2, 0.0))
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


def write_file(index: "faiss.Index", path: Path) -> None:
    """Write an index atomically."""
    import faiss

    try:
        with atomic_path(path) as part:
            faiss.write_index(index, str(part))
    except RuntimeError as error:
        reason = str(error).rpartition("failed: ")[2].strip()
        raise DiskFault(f"{reason}; the vectors are kept: free some space and repeat the same command") from None


def open_file(path: Path, way_out: str = "rebuild the index") -> "faiss.Index":
    """Open an index file, memory-mapped where its kind can be. A broken file is a `DataError` with the `way_out`."""
    require_library("faiss", f"the index file {path}", "faiss")
    import faiss

    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:
        raise DataError(f"{path} is no index that faiss {faiss.__version__} reads; {way_out}") from None


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


# Published vectors: imports a faiss file over a corpus, such as Search-R1's `e5_Flat.index`, instead of encoding.
#
# A file does not state its texts, its encoder, its prompts or the order of its rows. So a sample of passages is encoded
# again, and every one of them must have its vector in its row.

SAMPLE = 32
"""Passages that are encoded again, including the first and the last."""
MAX_DISTANCE = 0.03
"""Largest ‖v − w‖ / ‖w‖ of a vector v of the file and w of the passage encoded again (cosine .9995). Half precision
stays below .003; another prompt, row or length in tokens is above."""


def vectors_of(corpus: Corpus, settings: EmbeddingSettings, folder: Path, report: Report) -> VectorStore:
    """Write the corpus's vectors into `folder`, or continue: those of `settings.vectors`, else encoded here."""
    if settings.vectors is None:
        return encode_corpus(corpus, settings, folder, report)
    path = Path(settings.vectors)
    index = open_published(path)
    check_published(path, index, corpus, settings, folder.parent)
    writer = VectorWriter(folder, len(corpus), index.d, settings.dtype)
    for start in range(writer.written, len(corpus), BLOCK_ROWS):
        report("vectors read", start, len(corpus))
        writer.append(_published_rows(path, index, np.arange(start, min(start + BLOCK_ROWS, len(corpus)))))
    report("vectors read", len(corpus), len(corpus))
    return writer.finish()


def take_graph(corpus: Corpus, settings: EmbeddingSettings, m: int, target: Path) -> None:
    """Copy the published graph of `settings.vectors` to `target`, after a check; no-op for a file of vectors alone.

    Raises `SettingError` for a graph of another density than `m`.
    """
    if settings.vectors is None or target.exists():
        return
    path = Path(settings.vectors)
    index = open_published(path)
    graph = getattr(index, "hnsw", None)
    if graph is None:
        return
    if (graph_m := int(graph.nb_neighbors(1))) != m:
        raise SettingError(f"{path} is a graph of m={graph_m}, not {m}; say m={graph_m}")
    check_published(path, index, corpus, settings, target.parent, graph=True)
    with atomic_path(target) as part:
        shutil.copyfile(path, part)


def open_published(path: Path) -> "faiss.Index":
    """Open a published file. Raises `DataError` for one that is missing or of another kind."""
    if not path.is_file():
        raise DataError(f"there is no file {path}, which `vectors` names; join its parts first if it was split")
    return open_file(path, "fetch it again, or leave `vectors` out")


def check_published(
    path: Path, index: "faiss.Index", corpus: Corpus, settings: EmbeddingSettings, folder: Path, *, graph: bool = False
) -> None:
    """Raise `DataError` unless the file's vectors are those of the corpus, in its order, by this encoder.

    A passage is encoded as here or as Search-R1 and FlashRAG encode it: its title in quotes on a line of its own. The
    index `folder` of the latter gets the file `QUOTED`, since new passages, encoded as here, would not match.
    """
    import faiss

    card = EncoderCard.of(encoder_folder(settings.encoder))
    inner_product = index.metric_type == faiss.METRIC_INNER_PRODUCT
    if not (inner_product or card.normalise) or (graph and not (inner_product and card.normalise)):
        raise DataError(
            f"{path} does not rank by inner products of vectors of length 1; leave `vectors` out"
            + (", or name its Flat file" if graph else "")
        )
    if index.ntotal != len(corpus):
        raise DataError(
            f"{path} holds {index.ntotal:,} vectors, and the corpus {len(corpus):,} passages; take the corpus that it "
            "was made from"
        )
    encode = window_encoder(settings)
    rows = np.unique(np.linspace(0, len(corpus) - 1, SAMPLE).astype(np.int64))
    passages = [corpus[row] for row in rows.tolist()]
    layouts = (
        [passage_text(passage) for passage in passages],
        [f'"{passage.title}"\n{passage.text}' for passage in passages],
    )
    encoded = [encode(texts) for texts in layouts]
    if index.d != encoded[0].shape[1]:
        raise DataError(
            f"{path} holds vectors of {index.d} numbers, and {settings.encoder} gives {encoded[0].shape[1]}; name the "
            "encoder that made them"
        )
    published = _published_rows(path, index, rows)
    plain, quoted = ([_differs(*pair) for pair in zip(published, vectors, strict=True)] for vectors in encoded)
    differs = min(plain, quoted, key=sum)
    if any(differs):
        raise DataError(
            f"{path} has other vectors than {settings.encoder} in {sum(differs)} of {len(differs)} passages that were "
            f"encoded again, first in row {rows[differs.index(True)]}; check the order of the corpus, the encoder, "
            f"passage_prompt={settings.passage_prompt!r} and passage_tokens={settings.passage_tokens}"
        )
    if any(plain):
        (folder / QUOTED).touch()


def _differs(published: Vectors, encoded: Vectors) -> bool:
    return bool(np.linalg.norm(published - encoded) > MAX_DISTANCE * max(float(np.linalg.norm(encoded)), 1e-12))


def _published_rows(path: Path, index: "faiss.Index", rows: Rows) -> Vectors:
    """Vectors of the file (M × D). Raises `DataError` for an index with compressed vectors."""
    try:
        return index.reconstruct_batch(rows)
    except RuntimeError:
        raise DataError(f"{path} does not hold whole vectors; name a Flat or HNSW file") from None
