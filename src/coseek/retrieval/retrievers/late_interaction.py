"""Late interaction: ranks passages by the MaxSim of token vectors (ColBERT; Khattab and Zaharia, SIGIR 2020).

MaxSim of a query and a passage is the sum over the query's tokens of the largest inner product with a token of the
passage. Encoders are `MultiVectorEncoder` folders of sentence-transformers, or folders of one vector per text, without
their pooling. The search is exact, for corpora whose token vectors fit into memory: one per token of every passage.
"""

import threading
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
from pydantic import model_validator

from coseek.core.errors import DataError, SettingError
from coseek.core.files import atomic_path
from coseek.data.corpus_file import read_array
from coseek.data.passage import Corpus
from coseek.hardware.placement import DevicePlacement, Precision
from coseek.retrieval.factory import require_library
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import Report
from coseek.retrieval.vectors.corpus_encoding import Counted, Encode, begin, encode_corpus, open_encoder
from coseek.retrieval.vectors.embedding_retriever import (
    EmbeddingRetriever,
    EmbeddingSettings,
    QueryEncoder,
    fill_from_card,
    passage_text,
)
from coseek.retrieval.vectors.encoder import EncoderCard, Vectors, encoder_folder, load_as, load_encoder
from coseek.retrieval.vectors.store import Rows, VectorStore

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder
    from torch import nn

VECTORS, ENDS = "vectors", "ends.npy"
Side: TypeAlias = Literal["query", "document"]
TOKENS = "token_embeddings"
"""What sentence-transformers calls the vectors of the tokens."""
BLOCK_TOKENS = 65_536
"""Tokens per matrix product, unless one passage has more."""
_COUNTED = 512
"""Passages that are tokenised together to count their vectors."""


def load_token_encoder(
    folder: Path, placement: DevicePlacement, precision: Precision, *, trust: bool = False
) -> "MultiVectorEncoder":
    """Load a folder onto its device. Of an encoder of one vector per text the language model's token vectors are
    used, at length 1. A folder without one is a `DataError`."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder.modules import BaseTokenPooling

    if EncoderCard.of(folder).similarity == "maxsim":
        model = load_as(MultiVectorEncoder, folder, placement, precision, trust=trust)
        if any(isinstance(module, BaseTokenPooling) for module in model):
            raise DataError(f"{folder} pools its token vectors, so their number is unknown; use another encoder")
        return model
    return with_head(load_encoder(folder, placement, precision, trust=trust), (), folder)


def with_head(model: "nn.Sequential", head: "Sequence[nn.Module]", folder: Path) -> "MultiVectorEncoder":
    """The language model of an encoder, then `head`, which maps its token vectors, at length 1."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    body = list(takewhile(lambda module: isinstance(module, Transformer), model))
    if not body:
        raise DataError(f"{folder} has no language model with a vector per token; take an encoder with one")
    modules = [*body, *head, MultiVectorMask(), Normalize(module_input_name=TOKENS)]
    return MultiVectorEncoder(modules=modules, device=str(next(model.parameters()).device))


class TokenEncoder:
    """A loaded encoder of token vectors. Thread-safe: a lock serialises calls."""

    def __init__(self, model: "MultiVectorEncoder") -> None:
        self.model = model
        self._lock = threading.Lock()

    @classmethod
    def open(cls, settings: EmbeddingSettings, folder: Path | None = None) -> "TokenEncoder":
        """Load the encoder of settings onto its device."""
        require_library("sentence_transformers", "the late-interaction retriever", "dense")
        folder = folder or encoder_folder(settings.encoder)
        return cls(load_token_encoder(folder, settings, settings.precision_at(), trust=settings.trust_remote_code))

    def encode(self, texts: Sequence[str], side: Side, prompt: str, max_tokens: int, batch_size: int) -> list[Vectors]:
        """Encode texts after `prompt`, truncated to `max_tokens` with the prompt: float32 T × D each."""
        with self._lock:
            self._limit(max_tokens)
            vectors = self.model.encode(list(texts), None, prompt, batch_size, False, convert_to_numpy=True, task=side)
        return [np.asarray(vectors_TD, dtype=np.float32) for vectors_TD in vectors]

    def counts(self, texts: Sequence[str], prompt: str, max_tokens: int) -> list[int]:
        """The number of vectors that each passage gets, without computing them."""
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

        with self._lock:
            self._limit(max_tokens)
            features = self.model.preprocess(list(texts), prompt=prompt or None, task="document")
            for module in self.model:
                if isinstance(module, MultiVectorMask):
                    features = module(features, task="document")
        return cast(list[int], features["attention_mask"].sum(dim=1).tolist())

    def _limit(self, max_tokens: int) -> None:
        self.model.max_seq_length = max_tokens
        for limit in ("query_length", "document_length"):  # the card has taken them over
            setattr(self.model[0], limit, None)


class TokenQueries(QueryEncoder):
    """Encodes queries to token vectors, padded with zeros, which add 0 to a MaxSim."""

    @cached_property
    def _tokens(self) -> TokenEncoder:
        return TokenEncoder.open(self.settings, self._folder)

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        settings = self.settings
        return padded(self._tokens.encode(texts, "query", *settings.query_input, settings.queries_together))


def padded(vectors_Q: Sequence[Vectors]) -> Vectors:
    """Pad Q arrays of T × D with zeros to one array of Q × T × D."""
    out_QTD = np.zeros((len(vectors_Q), max(map(len, vectors_Q)), vectors_Q[0].shape[1]), dtype=np.float32)
    for row_TD, vectors_TD in zip(out_QTD, vectors_Q, strict=True):
        row_TD[: len(vectors_TD)] = vectors_TD
    return out_QTD


def token_windows(settings: EmbeddingSettings, each: Counted = lambda count: None) -> Encode:
    """Open the encoder; returns a function that encodes the passages of a window to their vectors, one after the
    other."""
    encoder = TokenEncoder.open(settings)

    def encode_window(texts: Sequence[str]) -> Vectors:
        vectors_TD = np.concatenate(encoder.encode(texts, "document", *settings.passage_input, settings.batch_size))
        each(len(vectors_TD))
        return vectors_TD

    return encode_window


def token_ends(settings: EmbeddingSettings, texts: Sequence[str]) -> Rows:
    """The row after the last vector of each passage, in a store of all passages' vectors in order."""
    encoder = TokenEncoder.open(settings)
    counts = [
        count
        for start in range(0, len(texts), _COUNTED)
        for count in encoder.counts(texts[start : start + _COUNTED], *settings.passage_input)
    ]
    return np.cumsum(counts, dtype=np.int64)


class MaxSimSearch:
    """Exact MaxSim over a store of token vectors, block by block. `ends_N` is the row after the last vector of each
    passage."""

    def __init__(self, store: VectorStore, ends_N: Rows, device: str = "cpu") -> None:
        self._store, self._ends_N, self._device = store, ends_N, device

    def search(self, queries_QTD: Vectors, k: int) -> tuple[Rows, Vectors]:
        """The rows and scores of the `k` best passages per query, best first; ties by row."""
        scores_QN = self.scores(queries_QTD)
        rows_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
        return rows_QK, np.take_along_axis(scores_QN, rows_QK, axis=1)

    def scores(self, queries_QTD: Vectors) -> Vectors:
        """The MaxSim of every query and passage, Q × N. It does not depend on the other queries."""
        import torch

        queries = [
            torch.from_numpy(query_TD[query_TD.any(axis=1)].T.copy()).to(self._device) for query_TD in queries_QTD
        ]
        scores_QN = np.empty((len(queries), len(self._ends_N)), dtype=np.float32)
        for first, last in self._blocks():
            start = int(self._ends_N[first - 1]) if first else 0
            counts_B = np.diff(self._ends_N[first:last], prepend=start)
            block_MD = torch.from_numpy(self._store.rows(start, int(self._ends_N[last - 1]))).to(self._device).float()
            lengths_B = torch.from_numpy(counts_B).to(self._device)
            for row_N, query_DT in zip(scores_QN, queries, strict=True):
                best_BT = torch.segment_reduce(block_MD @ query_DT, "max", lengths=lengths_B, axis=0)
                row_N[first:last] = best_BT.sum(dim=1).cpu().numpy()
        return scores_QN

    def _blocks(self) -> list[tuple[int, int]]:
        """(first, last) passages of every block."""
        ends_N, blocks, first = self._ends_N, list[tuple[int, int]](), 0
        while first < len(ends_N):
            start = int(ends_N[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends_N, start + BLOCK_TOKENS, side="right")))
            blocks.append((first, last))
            first = last
        return blocks


class LateInteractionSettings(EmbeddingSettings):
    """The encoder: a `MultiVectorEncoder` folder, or one of one vector per text, whose token vectors are taken."""

    @model_validator(mode="after")
    def _check_encoded_here(self) -> "LateInteractionSettings":
        if self.cluster is not None or self.vectors is not None:
            raise SettingError("late-interaction takes neither `cluster` nor `vectors`; leave them out")
        return self


SETTINGS = LateInteractionSettings
SEARCH_TIME = LateInteractionSettings.SEARCH_TIME


def resolve(settings: LateInteractionSettings) -> LateInteractionSettings:
    """Fill in the values of the encoder's card."""
    return fill_from_card(settings, "late-interaction", "dense")


def resume(
    corpus: Corpus, settings: LateInteractionSettings, folder: Path, report: Report, old: OldIndex | None
) -> None:
    """Count the tokens of every passage, then encode the corpus, in an update too."""
    settings = begin(settings, folder, old)
    if not (folder / ENDS).exists():
        with atomic_path(folder / ENDS) as part, part.open("wb") as file:
            np.save(file, token_ends(settings, [passage_text(passage) for passage in corpus]))
    ends_N = cast(Rows, read_array(folder / ENDS, "i")).tolist()
    encode_corpus(corpus, settings, folder / VECTORS, report, ends_N, token_windows)


def load(folder: Path, corpus: Corpus, settings: LateInteractionSettings) -> EmbeddingRetriever:
    """Open an index; the vectors stay on disk. A changed encoder is an `IndexMismatch`."""
    ends_N = cast(Rows, read_array(folder / ENDS, "i"))
    search = MaxSimSearch(VectorStore.open(folder / VECTORS), ends_N, str(settings.torch_device()))
    queries = open_encoder(folder, settings, TokenQueries)
    return EmbeddingRetriever("late-interaction", corpus, settings, queries, search)
