"""BM25: ranks passages by the query words they hold, rare words first.

score(q, d) = Σ_w∈q idf(w) · tf / (tf + k1 · (1 − b + b · |d| / mean |d|)),  idf(w) = ln(1 + (N − df + ½) / (df + ½))

(Lucene's variant; a word that stands twice in the query counts twice.) The weights are worked out when an index is
made, in the arithmetic of the library bm25s and to the same float32; a search only adds them up.
"""

import json
import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from coseek.core.files import read_json
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.lexical.analyzer import Stem, stemmer, words
from coseek.retrieval.lexical.postings import Counted, Ints, Postings, count_words
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.ranking import Scores
from coseek.retrieval.views import View, render_view

CHUNK_ROWS = 16_384
"""Passages whose words are held as text and numbers at a time while an index is made."""


class Bm25Settings(Settings):
    """How BM25 weighs and cuts."""

    k1: float = Field(default=1.2, ge=0)
    """How slowly repeated words stop counting; 0 counts a word once."""
    b: float = Field(default=0.75, ge=0, le=1)
    """How much long passages are held back; 0 not at all."""
    title_weight: int = Field(default=1, ge=0)
    """How many times a passage's title is read; 0 leaves it out."""
    text_weight: int = Field(default=1, ge=0)
    """How many times a passage's text is read; 0 leaves it out."""
    stop_words: bool = False
    """Drop the 33 commonest English words from passages and queries."""
    stem: Stem = "none"
    """`plural` takes English plural endings off; a language (`english`, `german` …) uses its Snowball stemmer."""
    view: View = "query"
    """What it sees of a search turn. Labels and separators are left out: they would be looked up as words."""

    @model_validator(mode="after")
    def _reads_something(self) -> "Bm25Settings":
        if not self.title_weight and not self.text_weight:
            raise PydanticCustomError("nothing_read", "title_weight and text_weight are both 0; give one of them 1")
        return self

    def cut(self, text: str) -> list[str]:
        """The words of a query or a passage as they are looked up."""
        return self.kept(words(text))

    def kept(self, found: Sequence[str]) -> list[str]:
        """Words that count, without their endings."""
        stem = stemmer(self.stem)
        return [stem(word) for word in found if not (self.stop_words and word in _STOP_WORDS)]


_STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()  # noqa: SIM905 (thirty-three quoted words read worse)
)
"""Lucene's English list."""


class Bm25:
    """The BM25 retriever. Passages that share no word with the query are never returned."""

    name = "bm25"

    def __init__(self, corpus: Corpus, settings: Bm25Settings, postings: Postings, vocabulary: dict[str, int]) -> None:
        self.corpus = corpus
        self.settings = settings
        self._postings = postings
        self._vocabulary = vocabulary

    @classmethod
    def over(cls, corpus: Corpus, settings: Bm25Settings | None = None) -> "Bm25":
        """Index a corpus in memory: the quick way for generated worlds and tests."""
        settings = settings or Bm25Settings()
        return cls(corpus, settings, *weigh(corpus, settings))

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.corpus.digest, self.settings.model_dump_json())

    def seen(self, query: QueryLike) -> str:
        return render_view(self.settings.view, query, bare=True)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Up to `k` passages a query; none for a query without a known word."""
        queries = as_queries(queries, k)
        return [self._search(self.seen(query), k) for query in queries]

    def scores(self, query: str) -> Scores:
        """The score of every passage, in corpus order; 0 without a common word."""
        return self._postings.scores(self._known(query))

    def _search(self, query: str, k: int) -> list[Hit]:
        rows, scores = self._postings.best(self._known(query), k)
        return [Hit(self.corpus[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]

    def _known(self, query: str) -> list[int]:
        """The query's words that some passage holds, in order, as numbers."""
        return [self._vocabulary[word] for word in self.settings.cut(query) if word in self._vocabulary]


def weigh(corpus: Corpus, settings: Bm25Settings, chunk_rows: int = CHUNK_ROWS) -> tuple[Postings, dict[str, int]]:
    """The weights of all words of a corpus, and the words' numbers."""
    numbers = _Numbers(settings)
    chunks = [_counted(chunk, settings, numbers) for chunk in _chunks(corpus, chunk_rows)]
    vocabulary = numbers.vocabulary
    starts_V1 = np.zeros(len(vocabulary) + 1, dtype=np.int64)
    for chunk in chunks:
        starts_V1[chunk.words_U + 1] += chunk.passages_U
    idf_V = _idf(starts_V1[1:], len(corpus))
    np.cumsum(starts_V1, out=starts_V1)
    norms_N = _norms(np.concatenate([chunk.lengths_N for chunk in chunks]), settings)
    weights_P = np.empty(starts_V1[-1], dtype=np.float32)
    rows_P = np.empty(starts_V1[-1], dtype=np.int32)
    next_V, row = starts_V1[:-1].copy(), 0
    while chunks:  # each is let go once it is in place
        chunk = chunks.pop(0)
        # The chunk's pairs of word w go to next_V[w], next_V[w] + 1, …
        before_U = np.cumsum(chunk.passages_U) - chunk.passages_U
        places_P = np.repeat(next_V[chunk.words_U] - before_U, chunk.passages_U) + np.arange(len(chunk.rows_P))
        idf_P = np.repeat(idf_V[chunk.words_U], chunk.passages_U)
        times_P = chunk.times_P.astype(np.float64)
        weights_P[places_P] = idf_P * (times_P / (norms_N[row + chunk.rows_P] + times_P))
        rows_P[places_P] = row + chunk.rows_P
        next_V[chunk.words_U] += chunk.passages_U
        row += len(chunk.lengths_N)
    return Postings(weights_P, rows_P, starts_V1, _maxima(weights_P, starts_V1), len(corpus)), vocabulary


class _Numbers(dict[str, int]):
    """Word as it is written → its number; −1 for one that does not count. Each word is stemmed once."""

    def __init__(self, settings: Bm25Settings) -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {}
        self._kept = settings.kept

    def __missing__(self, word: str) -> int:
        stems = self._kept([word])
        number = self.vocabulary.setdefault(stems[0], len(self.vocabulary)) if stems else -1
        self[word] = number
        return number


def _chunks(corpus: Corpus, rows: int) -> Iterator[list[Passage]]:
    """The passages in order: a corpus on disk is read once, from front to end."""
    passages = iter(corpus)
    while chunk := list(islice(passages, rows)):
        yield chunk


def _counted(passages: Sequence[Passage], settings: Bm25Settings, numbers: _Numbers) -> Counted:
    found, lengths = array("i"), array("q")
    for passage in passages:
        before = len(found)
        for text, weight in ((passage.title, settings.title_weight), (passage.text, settings.text_weight)):
            for _ in range(weight):
                found.extend(map(numbers.__getitem__, words(text)))
        lengths.append(len(found) - before)
    return count_words(np.frombuffer(found, dtype=np.int32), np.frombuffer(lengths, dtype=np.int64))


def _idf(passages_V: Ints, passages: int) -> Scores:
    """Few words differ in how many passages hold them, so the logarithm of Python, to its last bit, is affordable."""
    different, which_V = np.unique(passages_V, return_inverse=True)
    logs = [math.log(1 + (passages - df + 0.5) / (df + 0.5)) for df in different.tolist()]
    return np.array(logs, dtype=np.float32)[which_V]


def _norms(lengths_N: Ints, settings: Bm25Settings) -> NDArray[np.float64]:
    """What stands beside tf in the denominator."""
    mean = lengths_N.mean() or 1.0  # a corpus without words has no weights either
    return settings.k1 * ((1 - settings.b) + settings.b * lengths_N / mean)


def _maxima(weights_P: Scores, starts_V1: Ints) -> Scores:
    """The greatest weight of each word; every word stands somewhere."""
    return np.maximum.reduceat(weights_P, starts_V1[:-1]) if len(weights_P) else weights_P


SETTINGS = Bm25Settings


def build(corpus: Corpus, settings: Bm25Settings, folder: Path) -> None:
    """Write the index files into `folder`."""
    postings, vocabulary = weigh(corpus, settings)
    np.save(folder / "weights.npy", postings.weights_P)
    np.save(folder / "rows.npy", postings.rows_P)
    np.save(folder / "starts.npy", postings.starts_V1)
    np.save(folder / "maxima.npy", postings.maxima_V)
    (folder / "vocabulary.json").write_text(json.dumps(list(vocabulary), ensure_ascii=False), encoding="utf-8")


def load(folder: Path, corpus: Corpus, settings: Bm25Settings) -> Bm25:
    """Open an index; its arrays stay on disk and are mapped into memory."""
    vocabulary = cast(list[str], read_json(folder / "vocabulary.json"))
    # asarray: a plain view of the mapped file; slices of np.memmap itself cost microseconds each.
    weights_P, rows_P, starts_V1 = (
        np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("weights", "rows", "starts")
    )
    kept = folder / "maxima.npy"  # an index made by coseek 0.1 has none
    maxima_V = np.load(kept) if kept.is_file() else _maxima(weights_P, starts_V1)
    postings = Postings(weights_P, rows_P, starts_V1, maxima_V, len(corpus))
    return Bm25(corpus, settings, postings, {word: number for number, word in enumerate(vocabulary)})
