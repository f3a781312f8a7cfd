"""HNSW: approximate dense retrieval through a graph of neighbours, in memory or mapped from disk.

Malkov and Yashunin (TPAMI 2020), by faiss. The graph does not depend on the number of threads.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import Field

from coseek.data.passage import Corpus
from coseek.retrieval.factory import require_library
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import Report, silent
from coseek.retrieval.vectors.corpus_encoding import begin, encode_changed, open_encoder
from coseek.retrieval.vectors.embedding_retriever import EmbeddingRetriever, EmbeddingSettings, fill_from_card
from coseek.retrieval.vectors.encoder import EncoderCard, Vectors, encoder_folder
from coseek.retrieval.vectors.faiss_index import (
    VECTORS,
    FileVectors,
    Lift,
    add_all,
    open_file,
    search_file,
    take_graph,
    vectors_of,
    write_file,
)
from coseek.retrieval.vectors.store import Rows, VectorStore

if TYPE_CHECKING:
    import faiss

GRAPH = "graph.faiss"


class HnswSettings(EmbeddingSettings):
    """The encoder, and the density of the graph."""

    m: int = Field(default=64, ge=2, le=512)
    """Neighbours per vector (twice as many on the lowest layer): 8 · m bytes per passage besides the vector."""
    ef_construction: int = Field(default=200, ge=1)
    """Candidates considered when a vector is linked. More gives a better graph and a slower build."""
    ef_search: int = Field(default=128, ge=1)
    """Candidates kept during a search (at least `k`). More gives higher recall and slower searches."""


def build_graph(
    store: VectorStore, settings: HnswSettings, normalised: bool, report: Report = silent
) -> "faiss.IndexHNSW":
    """The graph over a store's vectors, which all have length 1 if `normalised`."""
    import faiss

    lift = Lift(store, normalised)
    kind = "SQfp16" if settings.dtype == "float16" else "Flat"
    graph = cast(
        "faiss.IndexHNSW", faiss.index_factory(lift.dim, f"HNSW{settings.m},{kind}", faiss.METRIC_INNER_PRODUCT)
    )
    graph.hnsw.efConstruction = settings.ef_construction
    add_all(graph, store, lift, report, "passages linked")
    return graph


class HnswSearch:
    """Searches a graph."""

    def __init__(self, path: Path, ef_search: int) -> None:
        self._graph = cast("faiss.IndexHNSW", open_file(path))
        self._graph.hnsw.efSearch = ef_search

    def search(self, queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]:
        return search_file(self._graph, queries_QD, k)


SETTINGS = HnswSettings
SEARCH_TIME = HnswSettings.SEARCH_TIME | {"ef_search"}


def resolve(settings: HnswSettings) -> HnswSettings:
    """Fill in the values of the encoder's card."""
    require_library("faiss", "the hnsw retriever", "faiss")
    return fill_from_card(settings)


def resume(corpus: Corpus, settings: HnswSettings, folder: Path, report: Report, old: OldIndex | None) -> None:
    """Encode the corpus, in an update only its new texts, and build the graph, which contains the vectors."""
    settings, vectors = begin(settings, folder, old), folder / VECTORS
    take_graph(corpus, settings, settings.m, folder / GRAPH)
    if not (folder / GRAPH).exists():
        normalised = EncoderCard.of(encoder_folder(settings.encoder)).normalise
        if old is None:
            store = vectors_of(corpus, settings, vectors, report)
        else:
            old_vectors = FileVectors(old.folder / GRAPH, normalised)
            store = encode_changed(corpus, old_vectors, old.rows_N, settings, vectors, report)
        write_file(build_graph(store, settings, normalised, report), folder / GRAPH)
    if vectors.exists():
        shutil.rmtree(vectors)


def load(folder: Path, corpus: Corpus, settings: HnswSettings) -> EmbeddingRetriever:
    """Open an index; graph and vectors are memory-mapped."""
    search = HnswSearch(folder / GRAPH, settings.ef_search)
    return EmbeddingRetriever("hnsw", corpus, settings, open_encoder(folder, settings), search)
