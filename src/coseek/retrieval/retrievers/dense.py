"""Dense: ranks passages by the inner product of vectors. The search is exact."""

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from coseek.core.cluster import connect
from coseek.core.errors import SettingError
from coseek.data.passage import Corpus
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import Report
from coseek.retrieval.vectors.corpus_encoding import begin, encode_changed, open_encoder
from coseek.retrieval.vectors.embedding_retriever import (
    EmbeddingRetriever,
    EmbeddingSettings,
    Nearest,
    QueryEncoder,
    fill_from_card,
    passage_text,
)
from coseek.retrieval.vectors.encoder import Encoder, EncoderCard, Vectors, encoder_folder
from coseek.retrieval.vectors.exact import BLOCK_ROWS, ClusterSearch, ExactSearch, ShardedSearch, fastest_method
from coseek.retrieval.vectors.faiss_index import vectors_of
from coseek.retrieval.vectors.int8 import Int8Search, largest_query_code, quantise
from coseek.retrieval.vectors.store import Rows, VectorStore

VECTORS, CODES = "vectors", "int8"


class DenseSettings(EmbeddingSettings):
    """The encoder, and the search over its vectors."""

    search: Literal["auto", "exact", "int8"] = "auto"
    """The search method; all methods return the same hits. `exact` scans all vectors. `int8` scans a copy of a quarter
    of the size first. `auto` selects the faster method on this machine: from 32,768 passages on a CPU it stores a copy
    where int8 is clearly faster (`coseek doctor` shows this), and uses a stored copy where int8 is still faster."""
    block_rows: int = Field(default=BLOCK_ROWS, ge=1)
    """Passages per matrix product of exact search."""


class StoreSearch:
    """Exact search over a store. The search structure is opened at the first search."""

    def __init__(self, store: VectorStore, settings: DenseSettings, codes: Path | None = None) -> None:
        self._store, self._settings = store, settings
        self._codes = codes
        """The folder of the int8 copy, if there is one."""

    @cached_property
    def method(self) -> str:
        """`int8` or `exact`."""
        requested, cluster = self._settings.search, self._settings.cluster
        if self._codes is None or not largest_query_code() or (requested == "auto" and cluster is not None):
            return "exact"
        return fastest_method(self._store, self._settings.device).taken if requested == "auto" else requested

    @cached_property
    def _searcher(self) -> Nearest:
        if self.method == "int8" and self._codes is not None:
            return Int8Search(self._store, self._codes)
        settings, block_rows = self._settings, self._settings.block_rows
        if settings.cluster is not None and self._store.folder is not None:
            return ClusterSearch(connect(settings.cluster), self._store, settings.device, block_rows)
        if devices := settings.spread:
            return ShardedSearch(self._store, devices, block_rows)
        return ExactSearch(self._store, str(settings.torch_device()), block_rows)

    def search(self, queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]:
        return self._searcher.search(queries_QD, k)


class Dense(EmbeddingRetriever):
    """The dense retriever."""

    def __init__(self, corpus: Corpus, settings: DenseSettings, queries: QueryEncoder, store: StoreSearch) -> None:
        super().__init__("dense", corpus, settings, queries, store)
        self._store = store

    @property
    def method(self) -> str:
        """The search method: `exact` or `int8`."""
        return self._store.method

    @classmethod
    def over(cls, corpus: Corpus, settings: DenseSettings | None = None) -> "Dense":
        """Encode a corpus in memory."""
        settings = resolve((settings or DenseSettings()).model_copy(update={"search": "exact"}))
        folder = encoder_folder(settings.encoder)
        card = EncoderCard.of(folder)
        encoder = Encoder.open(folder, settings, trust=settings.trust_remote_code)
        texts = [passage_text(passage) for passage in corpus]
        vectors_ND = encoder.encode(texts, *settings.passage_input, settings.batch_size, normalise=card.normalise)
        store = VectorStore.of(vectors_ND.astype(np.float16) if settings.dtype == "float16" else vectors_ND)
        return cls(corpus, settings, QueryEncoder(settings, folder, card), StoreSearch(store, settings))


SETTINGS = DenseSettings
SEARCH_TIME = DenseSettings.SEARCH_TIME | {"search", "block_rows", "devices", "cluster"}


resolve = fill_from_card
"""Fills in the values of the encoder's card."""


def resume(corpus: Corpus, settings: DenseSettings, folder: Path, report: Report, old: OldIndex | None) -> None:
    """Encode the corpus, in an update only its new texts; write the int8 copy if the method needs one."""
    settings, vectors = begin(settings, folder, old), folder / VECTORS
    if old is None:
        store = vectors_of(corpus, settings, vectors, report)
    else:
        store = encode_changed(corpus, VectorStore.open(old.folder / VECTORS), old.rows_N, settings, vectors, report)
    method = fastest_method(store, settings.device).taken if settings.search == "auto" else settings.search
    if method == "int8" and not (folder / CODES).exists():
        quantise(store, folder / CODES)


def load(folder: Path, corpus: Corpus, settings: DenseSettings) -> Dense:
    """Open an index; the vectors stay on disk. A changed encoder is an `IndexMismatch`."""
    queries = open_encoder(folder, settings)
    codes = folder / CODES if (folder / CODES).exists() else None
    if settings.search == "int8" and codes is None:
        raise SettingError(f"{folder} was made without an int8 copy; search it with search=auto, or rebuild it")
    return Dense(corpus, settings, queries, StoreSearch(VectorStore.open(folder / VECTORS), settings, codes))
