"""HNSW: approximate dense retrieval through a graph of neighbours, in memory or mapped from disk.

Malkov and Yashunin (TPAMI 2020), by faiss. The graph does not depend on the number of threads.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import Field

from coseek.data.passage import Corpus
from coseek.retrieval.factory import require_library
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import Report, silent
from coseek.retrieval.vectors.corpus_encoding import begin, encode_changed, open_encoder, same_encoder
from coseek.retrieval.vectors.embedding_retriever import (
    EMBEDDING_SEARCH_TIME,
    EmbeddingRetriever,
    EmbeddingSettings,
    Rows,
    fill_from_card,
)
from coseek.retrieval.vectors.encoder import EncoderCard, Vectors, encoder_folder
from coseek.retrieval.vectors.faiss_index import (
    FileVectors,
    Lift,
    add_all,
    build_file,
    open_file,
    search_file,
    take_graph,
    vectors_of,
)
from coseek.retrieval.vectors.store import VectorStore

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
SEARCH_TIME = EMBEDDING_SEARCH_TIME | {"ef_search"}


def resolve(settings: HnswSettings) -> HnswSettings:
    """Fill in the values of the encoder's card."""
    require_library("faiss", "the hnsw retriever", "faiss")
    return fill_from_card(settings)


def resume(corpus: Corpus, settings: HnswSettings, folder: Path, report: Report) -> None:
    """Encode the corpus and build the graph, which contains the vectors."""
    begin(settings, folder)
    take_graph(corpus, settings, settings.m, folder / GRAPH)
    encode = partial(vectors_of, corpus)
    build_file(settings, folder / GRAPH, encode, build_graph, report, keep_vectors=False)


def update(corpus: Corpus, settings: HnswSettings, folder: Path, old: OldIndex, report: Report) -> None:
    """Write the files that `resume` writes. Only new texts are encoded; the graph is built again."""
    settings = same_encoder(old.folder, settings)
    old_vectors = FileVectors(old.folder / GRAPH, EncoderCard.of(encoder_folder(settings.encoder)).normalise)
    encode = partial(encode_changed, corpus, old_vectors, old.rows_N)
    build_file(settings, folder / GRAPH, encode, build_graph, report, keep_vectors=False)


def load(folder: Path, corpus: Corpus, settings: HnswSettings) -> EmbeddingRetriever:
    """Open an index; graph and vectors are memory-mapped."""
    require_library("faiss", "the hnsw retriever", "faiss")
    search = HnswSearch(folder / GRAPH, settings.ef_search)
    return EmbeddingRetriever("hnsw", corpus, settings, open_encoder(folder, settings), search)
