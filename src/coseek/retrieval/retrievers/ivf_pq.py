"""IVF-PQ: dense retrieval for corpora whose vectors do not fit: cells, and a few bytes a passage inside them.

Jégou, Douze and Schmid (TPAMI 2011), by faiss. A search looks into the `nprobe` nearest cells and takes the best by
their codes; with `refine`, so many times k of them are compared again by their real vectors, read from disk.
"""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from pydantic import Field

from coseek.core.errors import SettingError
from coseek.data.passage import Corpus
from coseek.retrieval.factory import require_library
from coseek.retrieval.resumable_build import Report, silent
from coseek.retrieval.vectors.corpus_encoding import open_encoder
from coseek.retrieval.vectors.embedding_retriever import (
    EMBEDDING_SEARCH_TIME,
    EmbeddingRetriever,
    EmbeddingSettings,
    Rows,
    in_order,
    settled,
)
from coseek.retrieval.vectors.encoder import Vectors, encoder_folder
from coseek.retrieval.vectors.encoder_card import EncoderCard
from coseek.retrieval.vectors.faiss_index import VECTORS, Lift, add_all, build_file, open_file, search_file
from coseek.retrieval.vectors.shortlist import scores_of
from coseek.retrieval.vectors.store import VectorStore

if TYPE_CHECKING:
    import faiss

CELLS = "cells.faiss"
_LEAST_A_CELL = 39
"""Passages that the centre of a cell should be learned from, at least (faiss warns below it)."""


class IvfPqSettings(EmbeddingSettings):
    """The encoder, how the space is parted, and how short the codes are."""

    nlist: int | None = Field(default=None, ge=1)
    """Cells; `None` for 4 · √N, but so that each has 39 passages on average."""
    m: int | None = Field(default=None, ge=1)
    """Pieces that a vector is cut into, of `nbits` bits each; `None` for one piece for every 8 dimensions."""
    nbits: int = Field(default=8, ge=4, le=12)
    """Bits a piece: 2^nbits passages at least are needed to learn from."""
    train_a_cell: int = Field(default=64, ge=_LEAST_A_CELL)
    """Passages drawn to learn from, for each cell."""
    seed: int = 0
    """Which passages are drawn, and where learning starts."""
    nprobe: int = Field(default=32, ge=1)
    """Cells looked into: more finds more, more slowly."""
    refine: int = Field(default=8, ge=0)
    """The best `refine` · k by their codes are compared again by their vectors, which makes their scores inner products
    again; 0 goes by the codes alone (and their scale), and an index made so does not keep the vectors."""


def fill_cells(
    store: VectorStore, settings: IvfPqSettings, normalised: bool, report: Report = silent
) -> "faiss.IndexIVFPQ":
    """The codes of a store's vectors in their cells. The vectors are all of length 1 where `normalised`."""
    import faiss

    pieces = settings.m or max(1, store.dim // 8)
    cells = cells_for(len(store), settings)
    lift = Lift(store, normalised, multiple=pieces, unit=True)  # faiss gives the centres of cells length 1, too
    metric = faiss.METRIC_INNER_PRODUCT
    # `np`: no polysemous codes, which serve another kind of search and take long to learn
    made = faiss.index_factory(lift.dim, f"IVF{cells},PQ{pieces}x{settings.nbits}np", metric)
    index = cast("faiss.IndexIVFPQ", made)
    wanted = max(cells * settings.train_a_cell, 64 * 2**settings.nbits)
    rng = np.random.default_rng(settings.seed)
    rows_M = np.sort(rng.permutation(len(store))[:wanted])
    for learner in (index.cp, index.pq.cp):
        learner.seed = settings.seed
        # The sample is drawn above; faiss is neither to draw again nor to complain about a small corpus.
        learner.min_points_per_centroid, learner.max_points_per_centroid = 1, len(rows_M)
    report("vectors learned from", 0, len(rows_M))
    index.train(lift.rows(rows_M))
    report("vectors learned from", len(rows_M), len(rows_M))
    add_all(index, store, lift, report, "passages put into cells")
    return index


def cells_for(passages: int, settings: IvfPqSettings) -> int:
    """How many cells; a corpus that is too small is refused."""
    codes = 2**settings.nbits
    if passages < codes:
        raise SettingError(
            f"ivf-pq learns {codes} codes (nbits={settings.nbits}) from as many passages at least, and the corpus has "
            f"{passages}; take the retriever dense, or fewer bits"
        )
    cells = settings.nlist or max(1, min(round(4 * passages**0.5), passages // _LEAST_A_CELL))
    if cells > passages:
        raise SettingError(f"nlist={cells} cells for {passages} passages; take fewer")
    return cells


class IvfPqSearch:
    """Looks into some cells."""

    def __init__(self, path: Path, settings: IvfPqSettings, store: VectorStore | None) -> None:
        import faiss

        self._index = cast("faiss.IndexIVFPQ", open_file(path, faiss.IO_FLAG_MMAP_IFC))
        self._index.nprobe = settings.nprobe
        self._refine = settings.refine
        self._store = store

    def search(self, queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]:
        if self._store is None:
            return search_file(self._index, queries_QD, k)
        deeper = min(k * self._refine, len(self._store))
        rows_QS, _ = search_file(self._index, queries_QD, deeper)
        scores_QS = np.full(rows_QS.shape, -np.inf, dtype=np.float32)
        for rows_S, scores_S, query_D in zip(rows_QS, scores_QS, queries_QD, strict=True):
            found = rows_S >= 0
            vectors_MD = self._store.gather(rows_S[found])
            scores_S[found] = scores_of(vectors_MD, np.broadcast_to(query_D, vectors_MD.shape))
        rows_QS, scores_QS = in_order(rows_QS, scores_QS)
        return rows_QS[:, :k], scores_QS[:, :k]


class IvfPq(EmbeddingRetriever):
    """The IVF-PQ retriever."""

    name = "ivf-pq"


SETTINGS = IvfPqSettings
SEARCH_TIME = EMBEDDING_SEARCH_TIME | {"nprobe", "refine"}


def settle(settings: IvfPqSettings) -> IvfPqSettings:
    """Fill in what the encoder's card says."""
    require_library("faiss", "the ivf-pq retriever", "faiss")
    return settled(settings)


def resume(corpus: Corpus, settings: IvfPqSettings, folder: Path, report: Report) -> None:
    """Encode the corpus, learn cells and codes from a sample, and put every passage into its cell."""
    cells_for(len(corpus), settings)  # refused before anything is encoded
    normalised = EncoderCard.of(encoder_folder(settings.encoder)).normalise

    def make(store: VectorStore) -> "faiss.Index":
        return fill_cells(store, settings, normalised, report)

    build_file(corpus, settings, folder / CELLS, make, report, keep_vectors=settings.refine > 0)


def load(folder: Path, corpus: Corpus, settings: IvfPqSettings) -> IvfPq:
    """Open an index; codes and vectors are mapped into memory."""
    require_library("faiss", "the ivf-pq retriever", "faiss")
    queries = open_encoder(folder, settings)
    vectors = folder / VECTORS
    if settings.refine and not vectors.exists():
        raise SettingError(
            f"refine={settings.refine}: {folder} was made with refine=0 and keeps no vectors; make it anew"
        )
    store = VectorStore.open(vectors) if settings.refine else None
    return IvfPq(corpus, settings, queries, IvfPqSearch(folder / CELLS, settings, store))
