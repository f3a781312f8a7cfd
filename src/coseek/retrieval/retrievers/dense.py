"""Dense: ranks passages by the inner product of unit vectors, exactly (every passage is looked at)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import Field

from coseek.data.errors import IndexMismatch, RetrieverError
from coseek.data.files import JsonObject, read_json, write_json
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.settings import Settings
from coseek.retrieval.encoder import Encoder, Vectors, encoder_folder, fingerprint
from coseek.retrieval.query import Asked
from coseek.retrieval.ranking import check_k, top_rows
from coseek.retrieval.retriever import digest_of
from coseek.retrieval.views import render


class DenseSettings(Settings):
    """Which encoder, and what it is shown."""

    encoder: str = "minilm"
    """A sentence-transformers folder, or the name of an encoder that a package ships."""
    query_prompt: str = ""
    """Written before each query, e.g. `query: ` for E5."""
    passage_prompt: str = ""
    """Written before each passage, e.g. `passage: ` for E5."""
    query_tokens: int = Field(default=256, ge=1)
    """Queries are cut to this many tokens."""
    passage_tokens: int = Field(default=256, ge=1)
    """Passages (title and text) are cut to this many tokens."""
    batch_size: int = Field(default=64, ge=1)
    """Passages encoded in one forward pass."""
    queries_together: int = Field(default=1, ge=1)
    """Queries encoded and compared in one go. 1 makes the hits of a query independent of its batch to the last bit;
    more is faster on big machines, and scores may then differ in the seventh digit from batch to batch."""
    block_rows: int = Field(default=65_536, ge=1)
    """Passages compared in one product: with 384 dimensions, 100 MB of the mapped file at a time."""
    view: str = "query"
    """What it sees of a search turn."""
    device: str = "cpu"
    """Where the encoder runs."""


class Dense:
    """The dense retriever. Opening it does not load the encoder: the first search does."""

    name = "dense"

    def __init__(self, corpus: Corpus, settings: DenseSettings, folder: Path, vectors_ND: Vectors) -> None:
        self.corpus = corpus
        self.settings = settings
        self._encoder_folder = folder
        self._encoder: Encoder | None = None
        self._vectors_ND = vectors_ND

    @classmethod
    def over(cls, corpus: Corpus, settings: DenseSettings | None = None) -> "Dense":
        """Encode a corpus in memory."""
        settings = settings or DenseSettings()
        folder = encoder_folder(settings.encoder)
        encoder = Encoder.open(folder, settings.device)
        texts = [_text(passage) for passage in corpus]
        vectors_ND = encoder.encode(texts, settings.passage_prompt, settings.passage_tokens, settings.batch_size)
        dense = cls(corpus, settings, folder, vectors_ND)
        dense._encoder = encoder
        return dense

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json()
        return digest_of(self.name, self.corpus.digest, settings, fingerprint(self._encoder_folder))

    def seen(self, query: Asked) -> str:
        return render(self.settings.view, query)

    def search(self, queries: Sequence[Asked], k: int) -> list[list[Hit]]:
        """The `k` nearest passages a query; none for a query without any character but blanks."""
        check_k(k)
        lists: list[list[Hit]] = [[] for _ in queries]
        texts = [self.seen(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text.strip()]
        together = self.settings.queries_together
        for start in range(0, len(asked), together):
            places = asked[start : start + together]
            for place, hits in zip(places, self._search([texts[place] for place in places], k), strict=True):
                lists[place] = hits
        return lists

    def _search(self, queries: list[str], k: int) -> list[list[Hit]]:
        settings = self.settings
        self._encoder = self._encoder or Encoder.open(self._encoder_folder, settings.device)
        vectors_QD = self._encoder.encode(queries, settings.query_prompt, settings.query_tokens, len(queries))
        if not np.isfinite(vectors_QD).all():
            raise RetrieverError(
                f"the encoder {settings.encoder} gave a vector that is not finite for one of {queries!r}"
            )
        best: list[tuple[list[int], list[float]]] = [([], []) for _ in queries]
        for start in range(0, len(self.corpus), settings.block_rows):
            scores_QN = (self._vectors_ND[start : start + settings.block_rows] @ vectors_QD.T).T
            best = [_merged(old, start, scores_N, k) for old, scores_N in zip(best, scores_QN, strict=True)]
        return [
            [Hit(self.corpus[row], score) for row, score in zip(rows, scores, strict=True)] for rows, scores in best
        ]


def _merged(old: tuple[list[int], list[float]], start: int, scores_N: Vectors, k: int) -> tuple[list[int], list[float]]:
    """The `k` best of those found in earlier blocks and those of this one; earlier rows win ties."""
    fresh = top_rows(scores_N, k)
    rows = np.concatenate([np.asarray(old[0], dtype=np.intp), fresh + start])
    scores = np.concatenate([np.asarray(old[1], dtype=np.float32), scores_N[fresh]])
    chosen = top_rows(scores, k)
    return rows[chosen].tolist(), scores[chosen].tolist()


def _text(passage: Passage) -> str:
    return f"{passage.title} {passage.text}".strip()


SETTINGS = DenseSettings


def build(corpus: Corpus, settings: DenseSettings, folder: Path) -> None:
    """Encode the corpus into `vectors.npy`, a batch at a time, and write down which encoder it was."""
    source = encoder_folder(settings.encoder)
    encoder = Encoder.open(source, settings.device)
    together = settings.batch_size * 16  # the encoder sorts these by length, so that batches are padded little
    vectors_ND: Vectors | None = None
    for start in range(0, len(corpus), together):
        texts = [_text(passage) for passage in corpus[start : start + together]]
        block = encoder.encode(texts, settings.passage_prompt, settings.passage_tokens, settings.batch_size)
        if vectors_ND is None:
            shape = (len(corpus), block.shape[1])
            vectors_ND = np.lib.format.open_memmap(folder / "vectors.npy", mode="w+", dtype=np.float32, shape=shape)
        vectors_ND[start : start + len(block)] = block
    if isinstance(vectors_ND, np.memmap):
        vectors_ND.flush()
    shipped = settings.encoder if source != Path(settings.encoder) else None
    # `folder` is a neighbour of the index that it will become, so the relative path holds there, too.
    path = None if shipped else os.path.relpath(source.resolve(), folder.resolve())
    write_json(folder / "encoder.json", {"shipped": shipped, "path": path, "fingerprint": fingerprint(source)})


def load(folder: Path, corpus: Corpus, settings: DenseSettings) -> Dense:
    """Open an index; the vectors stay on disk. An encoder that has changed since is refused."""
    card = cast(JsonObject, read_json(folder / "encoder.json"))
    name = card["shipped"] or os.path.normpath(folder.resolve() / str(card["path"]))
    source = encoder_folder(str(name))
    if fingerprint(source) != card["fingerprint"]:
        raise IndexMismatch(
            f"{folder} was made with another version of the encoder {name}; make it anew with `coseek index`"
        )
    vectors_ND = np.asarray(np.load(folder / "vectors.npy", mmap_mode="r"))
    return Dense(corpus, settings, source, vectors_ND)
