"""HNSW: dense retrieval through a graph of neighbours. Quick, approximate, and all in memory or mapped from disk.

Malkov and Yashunin (TPAMI 2020), by faiss. The graph is the same for the same vectors, whatever the number of threads.
"""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import Field

from coseek.data.passage import Corpus
from coseek.retrieval.factory import require_library
from coseek.retrieval.resumable_build import Report, silent
from coseek.retrieval.vectors.corpus_encoding import open_encoder
from coseek.retrieval.vectors.embedding_retriever import (
    EMBEDDING_SEARCH_TIME,
    EmbeddingRetriever,
    EmbeddingSettings,
    Rows,
    settled,
)
from coseek.retrieval.vectors.encoder import Vectors, encoder_folder
from coseek.retrieval.vectors.encoder_card import EncoderCard
from coseek.retrieval.vectors.faiss_index import Lift, add_all, build_file, open_file, search_file
from coseek.retrieval.vectors.store import VectorStore

if TYPE_CHECKING:
    import faiss

GRAPH = "graph.faiss"


class HnswSettings(EmbeddingSettings):
    """The encoder, and how densely the graph is woven and searched."""

    m: int = Field(default=64, ge=2, le=512)
    """Neighbours of a vector (twice as many on the ground floor): 8 · m bytes a passage on top of the vector."""
    ef_construction: int = Field(default=200, ge=1)
    """Candidates looked at when a vector is linked: more makes a better graph, more slowly."""
    ef_search: int = Field(default=128, ge=1)
    """Candidates kept while searching (never fewer than `k`): more finds more, more slowly."""


def weave(store: VectorStore, settings: HnswSettings, normalised: bool, report: Report = silent) -> "faiss.IndexHNSW":
    """The graph over a store's vectors, which are all of length 1 where `normalised`."""
    import faiss

    lift = Lift(store, normalised)
    kind = "SQfp16" if settings.dtype == "float16" else "Flat"
    made = faiss.index_factory(lift.dim, f"HNSW{settings.m},{kind}", faiss.METRIC_INNER_PRODUCT)
    graph = cast("faiss.IndexHNSW", made)
    graph.hnsw.efConstruction = settings.ef_construction
    add_all(graph, store, lift, report, "passages linked")
    return graph


class HnswSearch:
    """Walks through a graph."""

    def __init__(self, path: Path, ef_search: int) -> None:
        import faiss

        self._graph = cast("faiss.IndexHNSW", open_file(path, faiss.IO_FLAG_MMAP_IFC))
        self._graph.hnsw.efSearch = ef_search

    def search(self, queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]:
        return search_file(self._graph, queries_QD, k)


class Hnsw(EmbeddingRetriever):
    """The HNSW retriever."""

    name = "hnsw"


SETTINGS = HnswSettings
SEARCH_TIME = EMBEDDING_SEARCH_TIME | {"ef_search"}


def settle(settings: HnswSettings) -> HnswSettings:
    """Fill in what the encoder's card says."""
    require_library("faiss", "the hnsw retriever", "faiss")
    return settled(settings)


def resume(corpus: Corpus, settings: HnswSettings, folder: Path, report: Report) -> None:
    """Encode the corpus and weave the graph, which holds the vectors."""
    normalised = EncoderCard.of(encoder_folder(settings.encoder)).normalise

    def make(store: VectorStore) -> "faiss.Index":
        return weave(store, settings, normalised, report)

    build_file(corpus, settings, folder / GRAPH, make, report, keep_vectors=False)


def load(folder: Path, corpus: Corpus, settings: HnswSettings) -> Hnsw:
    """Open an index; graph and vectors are mapped into memory."""
    require_library("faiss", "the hnsw retriever", "faiss")
    queries = open_encoder(folder, settings)
    return Hnsw(corpus, settings, queries, HnswSearch(folder / GRAPH, settings.ef_search))
