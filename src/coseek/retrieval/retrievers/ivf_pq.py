"""IVF-PQ: approximate dense retrieval with compressed vectors, for corpora whose vectors exceed memory.

Jégou, Douze and Schmid (TPAMI 2011), by faiss. Vectors are partitioned into cells and stored as codes of a few bytes. A
search scans the `nprobe` nearest cells; with `refine`, the best `refine` · k are rescored with the exact vectors on
disk.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from pydantic import Field

from coseek.core.errors import SettingError
from coseek.data.passage import Corpus
from coseek.retrieval.factory import require_library
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import Report, silent
from coseek.retrieval.vectors.corpus_encoding import begin, open_encoder
from coseek.retrieval.vectors.embedding_retriever import EmbeddingRetriever, EmbeddingSettings, fill_from_card, in_order
from coseek.retrieval.vectors.encoder import EncoderCard, Vectors, encoder_folder
from coseek.retrieval.vectors.faiss_index import VECTORS, Lift, add_all, open_file, search_file, vectors_of, write_file
from coseek.retrieval.vectors.shortlist import scores_of
from coseek.retrieval.vectors.store import Rows, VectorStore

if TYPE_CHECKING:
    import faiss

CELLS = "cells.faiss"
_MIN_PER_CELL = 39
"""The minimum number of training vectors per cell (faiss warns below it)."""


class IvfPqSettings(EmbeddingSettings):
    """The encoder, the number of cells, and the length of the codes."""

    nlist: int | None = Field(default=None, ge=1)
    """The number of cells; `None` for 4 · √N, limited to an average of 39 passages per cell."""
    m: int | None = Field(default=None, ge=1)
    """Subvectors per vector, of `nbits` bits each; `None` for one per 8 dimensions."""
    nbits: int = Field(default=8, ge=4, le=12)
    """Bits per subvector. Training needs at least 2^nbits passages."""
    train_a_cell: int = Field(default=64, ge=_MIN_PER_CELL)
    """Training passages per cell."""
    seed: int = 0
    """Seed of the training sample and of k-means."""
    nprobe: int = Field(default=32, ge=1)
    """Cells scanned per query. More gives higher recall and slower searches."""
    refine: int = Field(default=8, ge=0)
    """The best `refine` · k by code are rescored with their vectors, so that scores are inner products. 0 returns the
    codes' scores, on their own scale, and an index built with 0 does not keep the vectors."""


def fill_cells(
    store: VectorStore, settings: IvfPqSettings, normalised: bool, report: Report = silent
) -> "faiss.IndexIVFPQ":
    """Train cells and codes on a sample and add all vectors, which have length 1 if `normalised`."""
    import faiss

    subvectors = settings.m or max(1, store.dim // 8)
    cells = cells_for(len(store), settings)
    lift = Lift(store, normalised, multiple=subvectors, unit=True)  # faiss normalises the cells' centres
    metric = faiss.METRIC_INNER_PRODUCT
    # `np` turns off polysemous codes, which this search does not use and which are slow to train.
    factory = f"IVF{cells},PQ{subvectors}x{settings.nbits}np"
    index = cast("faiss.IndexIVFPQ", faiss.index_factory(lift.dim, factory, metric))
    sample_size = max(cells * settings.train_a_cell, 64 * 2**settings.nbits)
    rng = np.random.default_rng(settings.seed)
    rows_M = np.sort(rng.permutation(len(store))[:sample_size])
    for clustering in (index.cp, index.pq.cp):
        clustering.seed = settings.seed
        # The sample is drawn above: faiss must not subsample it or warn about a small corpus.
        clustering.min_points_per_centroid, clustering.max_points_per_centroid = 1, len(rows_M)
    report("training vectors", 0, len(rows_M))
    index.train(lift.rows(rows_M))
    report("training vectors", len(rows_M), len(rows_M))
    add_all(index, store, lift, report, "passages assigned to cells")
    return index


def cells_for(passages: int, settings: IvfPqSettings) -> int:
    """The number of cells. A corpus that is too small is a `SettingError`."""
    codes = 2**settings.nbits
    if passages < codes:
        raise SettingError(
            f"ivf-pq trains {codes} codes (nbits={settings.nbits}) on at least as many passages, and the corpus has "
            f"{passages}; use the retriever dense, or fewer bits"
        )
    cells = settings.nlist or max(1, min(round(4 * passages**0.5), passages // _MIN_PER_CELL))
    if cells > passages:
        raise SettingError(f"nlist={cells} cells for {passages} passages; use fewer")
    return cells


class IvfPqSearch:
    """Searches the nearest cells."""

    def __init__(self, path: Path, settings: IvfPqSettings, store: VectorStore | None) -> None:
        self._index = cast("faiss.IndexIVFPQ", open_file(path))
        self._index.nprobe = settings.nprobe
        self._refine = settings.refine
        self._store = store

    def search(self, queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]:
        if self._store is None:
            return search_file(self._index, queries_QD, k)
        depth = min(k * self._refine, len(self._store))
        rows_QS, _ = search_file(self._index, queries_QD, depth)
        scores_QS = np.full(rows_QS.shape, -np.inf, dtype=np.float32)
        for rows_S, scores_S, query_D in zip(rows_QS, scores_QS, queries_QD, strict=True):
            exists = rows_S >= 0
            vectors_MD = self._store.gather(rows_S[exists])
            scores_S[exists] = scores_of(vectors_MD, np.broadcast_to(query_D, vectors_MD.shape))
        rows_QS, scores_QS = in_order(rows_QS, scores_QS)
        return rows_QS[:, :k], scores_QS[:, :k]


SETTINGS = IvfPqSettings
SEARCH_TIME = IvfPqSettings.SEARCH_TIME | {"nprobe", "refine"}


def resolve(settings: IvfPqSettings) -> IvfPqSettings:
    """Fill in the values of the encoder's card."""
    require_library("faiss", "the ivf-pq retriever", "faiss")
    return fill_from_card(settings)


def resume(corpus: Corpus, settings: IvfPqSettings, folder: Path, report: Report, old: OldIndex | None) -> None:
    """Encode the corpus, in an update too, train cells and codes on a sample, and assign every passage to its cell."""
    cells_for(len(corpus), settings)  # raises before anything is encoded
    settings, vectors = begin(settings, folder, old), folder / VECTORS
    if not (folder / CELLS).exists():
        normalised = EncoderCard.of(encoder_folder(settings.encoder)).normalise
        store = vectors_of(corpus, settings, vectors, report)
        write_file(fill_cells(store, settings, normalised, report), folder / CELLS)
    if vectors.exists() and not settings.refine:
        shutil.rmtree(vectors)


def load(folder: Path, corpus: Corpus, settings: IvfPqSettings) -> EmbeddingRetriever:
    """Open an index; codes and vectors are memory-mapped."""
    vectors = folder / VECTORS
    if settings.refine and not vectors.exists():
        raise SettingError(f"refine={settings.refine}: {folder} was made with refine=0, without vectors; rebuild it")
    search = IvfPqSearch(folder / CELLS, settings, VectorStore.open(vectors) if settings.refine else None)
    return EmbeddingRetriever("ivf-pq", corpus, settings, open_encoder(folder, settings), search)
