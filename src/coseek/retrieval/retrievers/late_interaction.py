"""Late interaction: ranks passages by the MaxSim of token vectors (ColBERT; Khattab and Zaharia, SIGIR 2020).

The search is exact, for corpora whose token vectors fit into memory: one per token of every passage.
"""

from pathlib import Path
from typing import cast

import numpy as np
from pydantic import model_validator

from coseek.core.errors import DataError, SettingError
from coseek.core.files import atomic_path
from coseek.data.corpus_file import read_array
from coseek.data.passage import Corpus
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import Report
from coseek.retrieval.vectors.corpus_encoding import begin, encode_corpus, open_encoder, same_encoder
from coseek.retrieval.vectors.embedding_retriever import (
    EMBEDDING_SEARCH_TIME,
    EmbeddingRetriever,
    EmbeddingSettings,
    Rows,
    fill_from_card,
    passage_text,
)
from coseek.retrieval.vectors.store import VectorStore
from coseek.retrieval.vectors.token_vectors import MaxSimSearch, TokenQueries, token_ends, token_windows

VECTORS, ENDS = "vectors", "ends.npy"


class LateInteractionSettings(EmbeddingSettings):
    """The encoder: a `MultiVectorEncoder` folder, or one of one vector per text, whose token vectors are taken."""

    @model_validator(mode="after")
    def _check_encoded_here(self) -> "LateInteractionSettings":
        if self.cluster is not None or self.vectors is not None:
            raise SettingError("late-interaction takes neither `cluster` nor `vectors`; leave them out")
        return self


SETTINGS = LateInteractionSettings
SEARCH_TIME = EMBEDDING_SEARCH_TIME


def resolve(settings: LateInteractionSettings) -> LateInteractionSettings:
    """Fill in the values of the encoder's card."""
    return fill_from_card(settings, "late-interaction", "dense")


def resume(corpus: Corpus, settings: LateInteractionSettings, folder: Path, report: Report) -> None:
    """Count the tokens of every passage, then encode the corpus."""
    begin(settings, folder)
    if not (folder / ENDS).exists():
        with atomic_path(folder / ENDS) as part, part.open("wb") as file:
            np.save(file, token_ends(settings, [passage_text(passage) for passage in corpus]))
    encode_corpus(corpus, settings, folder / VECTORS, report, _read_ends(folder, corpus).tolist(), token_windows)


def update(corpus: Corpus, settings: LateInteractionSettings, folder: Path, old: OldIndex, report: Report) -> None:
    """Write the files that `resume` writes, by the encoder of the old index. All texts are encoded again."""
    resume(corpus, same_encoder(old.folder, settings), folder, report)


def _read_ends(folder: Path, corpus: Corpus) -> Rows:
    ends_N = cast(Rows, read_array(folder / ENDS, "i"))
    if len(ends_N) != len(corpus):
        raise DataError(f"{folder / ENDS} is of {len(ends_N)} passages, not {len(corpus)}; rebuild the index")
    return ends_N


def load(folder: Path, corpus: Corpus, settings: LateInteractionSettings) -> EmbeddingRetriever:
    """Open an index; the vectors stay on disk. A changed encoder is an `IndexMismatch`."""
    search = MaxSimSearch(VectorStore.open(folder / VECTORS), _read_ends(folder, corpus), str(settings.torch_device()))
    queries = open_encoder(folder, settings, TokenQueries)
    return EmbeddingRetriever("late-interaction", corpus, settings, queries, search)
