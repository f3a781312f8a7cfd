"""Sparse: ranks passages by the inner product of learned word weights (SPLADE; Formal et al., SIGIR 2021).

The encoder gives a text one weight, mostly 0, per word of its vocabulary. The index holds the weights of all passages
by word, so that a search reads those of the query's words alone. The search is exact, and the index fits into memory.
"""

import threading
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from pydantic import model_validator

from coseek.core.errors import DataError, SettingError
from coseek.core.files import atomic_path
from coseek.data.passage import Corpus
from coseek.hardware.placement import DevicePlacement, Precision
from coseek.retrieval.factory import require_library
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import Report
from coseek.retrieval.ranking import top_rows
from coseek.retrieval.vectors.corpus_encoding import WINDOW_BATCHES, begin, open_encoder
from coseek.retrieval.vectors.embedding_retriever import (
    EmbeddingRetriever,
    EmbeddingSettings,
    QueryEncoder,
    fill_from_card,
    passage_text,
)
from coseek.retrieval.vectors.encoder import Vectors, encoder_folder, load_as
from coseek.retrieval.vectors.store import Rows

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array
    from sentence_transformers import SparseEncoder

WEIGHTS = "weights"


class SparseSettings(EmbeddingSettings):
    """The encoder: a `SparseEncoder` folder."""

    @model_validator(mode="after")
    def _check_encoded_here(self) -> "SparseSettings":
        if self.cluster is not None or self.vectors is not None or self.devices:
            raise SettingError("sparse takes none of `cluster`, `devices` and `vectors`; leave them out")
        return self


def load_sparse_encoder(
    folder: Path, placement: DevicePlacement, precision: Precision, *, trust: bool = False
) -> "SparseEncoder":
    """Load a folder onto its device."""
    require_library("sentence_transformers", "the sparse retriever", "dense")
    from sentence_transformers import SparseEncoder

    return load_as(SparseEncoder, folder, placement, precision, trust=trust)


def _load_encoder(folder: Path, settings: EmbeddingSettings) -> "SparseEncoder":
    return load_sparse_encoder(folder, settings, settings.precision_at(), trust=settings.trust_remote_code)


_encoding = threading.Lock()


def word_weights(
    model: "SparseEncoder",
    texts: Sequence[str],
    side: Literal["query", "document"],
    prompt: str,
    max_tokens: int,
    batch_size: int,
) -> "csr_array":
    """Encode texts after `prompt`, truncated to `max_tokens` with the prompt: float32 N × V, in input order."""
    from scipy.sparse import csr_array, vstack

    method = model.encode_query if side == "query" else model.encode_document
    encode = partial(method, prompt=prompt, batch_size=batch_size, convert_to_sparse_tensor=False)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # reduces padding
    batches = []
    with _encoding:
        model.max_seq_length = max_tokens
        for start in range(0, len(texts), batch_size):
            weights_BV = encode([texts[index] for index in order[start : start + batch_size]], show_progress_bar=False)
            batches.append(csr_array(weights_BV.float().cpu().numpy()))
    return csr_array(vstack(batches, format="csr")[np.argsort(order)])


class SparseQueryEncoder(QueryEncoder):
    """Encodes queries to their word weights, Q × V."""

    @cached_property
    def _model(self) -> "SparseEncoder":
        return _load_encoder(self._folder, self.settings)

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        settings = self.settings
        weights_QV = word_weights(self._model, texts, "query", *settings.query_input, settings.queries_together)
        return cast(Vectors, weights_QV.toarray())


class WordSearch:
    """Exact search over the word weights in a folder, which are read at the first search."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _weights_NV(self) -> "csc_array":
        from scipy.sparse import csc_array, load_npz, vstack

        windows = [load_npz(path) for path in sorted(self._folder.glob("*.npz"))]
        return csc_array(vstack(windows, format="csc"))

    def search(self, queries_QV: Vectors, k: int) -> tuple[Rows, Vectors]:
        """The `k` best passages per query, best first, ties by row; −1 for those that share no word with it."""
        rows_QK = np.full((len(queries_QV), k), -1, dtype=np.int64)
        scores_QK = np.zeros(rows_QK.shape, dtype=np.float32)
        for rows_K, scores_K, query_V in zip(rows_QK, scores_QK, queries_QV, strict=True):
            scores_N = self._scores(query_V)
            best = top_rows(scores_N, k, above=0.0)
            rows_K[: len(best)], scores_K[: len(best)] = best, scores_N[best]
        return rows_QK, scores_QK

    def _scores(self, query_V: Vectors) -> Vectors:
        words = np.flatnonzero(query_V)
        return np.asarray(self._weights_NV[:, words] @ query_V[words], dtype=np.float32)


class Sparse(EmbeddingRetriever):
    """The sparse retriever."""

    absent_score = 0.0


SETTINGS = SparseSettings
SEARCH_TIME = SparseSettings.SEARCH_TIME


def resolve(settings: SparseSettings) -> SparseSettings:
    """Fill in the values of the encoder's card."""
    if settings.dtype != "float32":
        raise SettingError(f"sparse stores its weights as float32, not {settings.dtype}; leave `dtype` out")
    return fill_from_card(settings, "sparse")


def resume(corpus: Corpus, settings: SparseSettings, folder: Path, report: Report, old: OldIndex | None) -> None:
    """Encode the windows of the corpus that are missing; in an update, all."""
    from scipy.sparse import save_npz

    settings = begin(settings, folder, old)
    (folder / WEIGHTS).mkdir(exist_ok=True)
    model: SparseEncoder | None = None
    window = settings.batch_size * WINDOW_BATCHES
    for start in range(0, len(corpus), window):
        path = folder / WEIGHTS / f"{start // window:06d}.npz"
        if not path.exists():
            model = model or _load_encoder(encoder_folder(settings.encoder), settings)
            texts = [passage_text(passage) for passage in corpus[start : start + window]]
            weights_WV = word_weights(model, texts, "document", *settings.passage_input, settings.batch_size)
            for row in np.flatnonzero(~np.isfinite(weights_WV.sum(axis=1))).tolist():
                raise DataError(
                    f"the encoder {settings.encoder} gave a weight that is not finite for the passage "
                    f"{corpus[start + row].id!r}"
                )
            with atomic_path(path) as part, part.open("wb") as file:
                save_npz(file, weights_WV)
        report("passages encoded", min(start + window, len(corpus)), len(corpus))


def load(folder: Path, corpus: Corpus, settings: SparseSettings) -> Sparse:
    """Open an index. A changed encoder is an `IndexMismatch`."""
    queries = open_encoder(folder, settings, SparseQueryEncoder)
    return Sparse("sparse", corpus, settings, queries, WordSearch(folder / WEIGHTS))
