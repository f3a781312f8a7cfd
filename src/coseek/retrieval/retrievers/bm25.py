"""BM25: ranks passages by the query words they hold, rare words first.

score(q, d) = Σ_w∈q idf(w) · tf / (tf + k1 · (1 − b + b · |d| / mean |d|)),  idf(w) = ln(1 + (N − df + ½) / (df + ½))

(Lucene's variant; a word that stands twice in the query counts twice.) The library bm25s computes the weights when
an index is made. Searching adds them up here, over the same arrays and in the same order, hence to the same float32
scores: bm25s' own `retrieve` spends about a millisecond a call on threads and progress bars, which rollouts with
four-word queries cannot afford, and its partial sort leaves ties in any order.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coseek.data.files import read_json
from coseek.data.passage import Corpus, Hit
from coseek.data.settings import Settings
from coseek.retrieval.query import Asked
from coseek.retrieval.ranking import check_k, top_rows
from coseek.retrieval.retriever import digest_of
from coseek.retrieval.views import render
from coseek.retrieval.words import Stem, words


class Bm25Settings(Settings):
    """How BM25 weighs and cuts."""

    k1: float = Field(default=1.2, ge=0)
    """How slowly repeated words stop counting; 0 counts a word once."""
    b: float = Field(default=0.75, ge=0, le=1)
    """How much long passages are held back; 0 not at all."""
    stop_words: bool = False
    """Drop the 33 commonest English words from passages and queries."""
    stem: Stem = "none"
    """`plural` takes English plural endings off."""
    view: str = "query"
    """What it sees of a search turn."""

    def cut(self, text: str) -> list[str]:
        """The words that count."""
        found = words(text, self.stem)
        return [word for word in found if word not in _STOP_WORDS] if self.stop_words else found


_STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()  # noqa: SIM905 (thirty-three quoted words read worse)
)
"""Lucene's English list."""


@dataclass(frozen=True)
class Postings:
    """Every word's passages and weights: those of word w stand at `starts_V1[w] : starts_V1[w + 1]`.

    V words · P word-passage pairs.
    """

    weights_P: NDArray[np.float32]
    rows_P: NDArray[np.int32]
    starts_V1: NDArray[np.int64]
    vocabulary: dict[str, int]


class Bm25:
    """The BM25 retriever. Passages that share no word with the query are never returned."""

    name = "bm25"

    def __init__(self, corpus: Corpus, settings: Bm25Settings, postings: Postings) -> None:
        self.corpus = corpus
        self.settings = settings
        self._postings = postings

    @classmethod
    def over(cls, corpus: Corpus, settings: Bm25Settings | None = None) -> "Bm25":
        """Index a corpus in memory: the quick way for generated worlds and tests."""
        settings = settings or Bm25Settings()
        return cls(corpus, settings, weigh(corpus, settings))

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.corpus.digest, self.settings.model_dump_json())

    def seen(self, query: Asked) -> str:
        return render(self.settings.view, query)

    def search(self, queries: Sequence[Asked], k: int) -> list[list[Hit]]:
        """Up to `k` passages a query; none for a query without a known word."""
        check_k(k)
        return [self._search(self.seen(query), k) for query in queries]

    def scores(self, query: str) -> NDArray[np.float32]:
        """The score of every passage, in corpus order; 0 without a common word."""
        post = self._postings
        scores_N = np.zeros(len(self.corpus), dtype=np.float32)
        for word in self.settings.cut(query):
            ident = post.vocabulary.get(word)
            if ident is not None:
                start, end = int(post.starts_V1[ident]), int(post.starts_V1[ident + 1])
                # A passage stands once in a word's postings, so plain indexed addition loses nothing.
                scores_N[post.rows_P[start:end]] += post.weights_P[start:end]
        return scores_N

    def _search(self, query: str, k: int) -> list[Hit]:
        scores_N = self.scores(query)
        rows = top_rows(scores_N, k, above=0.0)
        return [Hit(self.corpus[row], score) for row, score in zip(rows.tolist(), scores_N[rows].tolist(), strict=True)]


def weigh(corpus: Corpus, settings: Bm25Settings) -> Postings:
    """Cut every passage (title and text) and let bm25s weigh its words."""
    # Here and not above: only making an index needs bm25s, and importing it (it looks for scipy, numba, jax) takes
    # longer than opening a small index.
    import bm25s  # type: ignore[import-untyped]

    vocabulary: dict[str, int] = {}
    idents = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in settings.cut(f"{passage.title} {passage.text}")]
        for passage in corpus
    ]
    if not vocabulary:  # nothing but punctuation or stop words: a mean length of 0 would be divided by
        empty = np.zeros(0, dtype=np.float32)
        return Postings(empty, empty.astype(np.int32), np.zeros(1, dtype=np.int64), vocabulary)
    model = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene", backend="numpy")
    model.index((idents, vocabulary), create_empty_token=False, show_progress=False)
    arrays = cast(dict[str, NDArray[np.float32]], model.scores)
    return Postings(
        weights_P=arrays["data"].astype(np.float32),
        rows_P=arrays["indices"].astype(np.int32),
        starts_V1=arrays["indptr"].astype(np.int64),
        vocabulary=vocabulary,
    )


SETTINGS = Bm25Settings


def build(corpus: Corpus, settings: Bm25Settings, folder: Path) -> None:
    """Write the index files into `folder`."""
    postings = weigh(corpus, settings)
    np.save(folder / "weights.npy", postings.weights_P)
    np.save(folder / "rows.npy", postings.rows_P)
    np.save(folder / "starts.npy", postings.starts_V1)
    (folder / "vocabulary.json").write_text(json.dumps(list(postings.vocabulary), ensure_ascii=False), encoding="utf-8")


def load(folder: Path, corpus: Corpus, settings: Bm25Settings) -> Bm25:
    """Open an index; its arrays stay on disk and are mapped into memory."""
    vocabulary = cast(list[str], read_json(folder / "vocabulary.json"))
    postings = Postings(
        # asarray: a plain view of the mapped file; slices of np.memmap itself cost microseconds each.
        weights_P=np.asarray(np.load(folder / "weights.npy", mmap_mode="r")),
        rows_P=np.asarray(np.load(folder / "rows.npy", mmap_mode="r")),
        starts_V1=np.asarray(np.load(folder / "starts.npy", mmap_mode="r")),
        vocabulary={word: ident for ident, word in enumerate(vocabulary)},
    )
    return Bm25(corpus, settings, postings)
