"""BM25: ranks passages by the query words they contain, weighted by rarity.

score(q, d) = Σ_w∈q idf(w) · tf / (tf + k1 · (1 − b + b · |d| / mean |d|)),  idf(w) = ln(1 + (N − df + ½) / (df + ½))

Lucene's variant; a word repeated in the query counts again. The weights are computed when an index is built,
bit-identical in float32 to the library bm25s; a search only sums them.
"""

import json
import math
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from coseek.core.errors import DataError
from coseek.core.files import read_json, read_json_object, write_json
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.corpus_file import WAY_OUT, read_array
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.lexical.analyzer import ANALYZER, AUTO, Stem, fold_accents, language_of, stemmer, units, words
from coseek.retrieval.lexical.postings import (
    ChunkCounts,
    Ints,
    Postings,
    Rows32,
    WordCounts,
    blocks_of,
    count_words,
    join_counts,
)
from coseek.retrieval.query import ContextFields, QueryLike, as_queries
from coseek.retrieval.ranking import Scores, top_rows
from coseek.retrieval.views import View, find_view, render_view

CHUNK_ROWS = 16_384
"""Passages processed at a time while an index is built."""
VOCABULARY = "vocabulary.json"
VERSION = "analyzer.json"
"""The file with the version of the tokenisation."""
LANGUAGE_SAMPLE = 1_000
"""Passages that determine the language."""


class Bm25Settings(Settings):
    """The weights and the tokenisation of BM25."""

    k1: float = Field(default=1.2, ge=0)
    """Saturation of term frequency; 0 counts a word once."""
    b: float = Field(default=0.75, ge=0, le=1)
    """Length normalisation; 0 for none."""
    title_weight: int = Field(default=1, ge=0)
    """Repetitions of a passage's title; 0 omits it."""
    text_weight: int = Field(default=1, ge=0)
    """Repetitions of a passage's text; 0 omits it."""
    stop_words: bool = False
    """Drop Lucene's 33 English stop words from passages and queries."""
    stem: Stem = "none"
    """`plural` removes English plural endings; a language (`english`, `german`, …) selects its Snowball stemmer; `auto`
    that of the corpus's language, or none, and is stored as the selected one."""
    fold_accents: bool = False
    """Remove the accents of Latin, Greek, Cyrillic and Arabic letters, so that `cafe` finds `café`."""
    view: View = "query"
    """The view of a search turn. Labels and separators are omitted, since they would be search words."""

    @model_validator(mode="after")
    def _reads_something(self) -> "Bm25Settings":
        if not self.title_weight and not self.text_weight:
            raise PydanticCustomError("nothing_read", "title_weight and text_weight are both 0; give one of them 1")
        return self

    def tokenize(self, text: str) -> list[str]:
        """The terms of a query or a passage."""
        return self.terms(words(text))

    def terms(self, tokens: Sequence[str]) -> list[str]:
        """Fold accents, drop stop words, and stem."""
        if self.fold_accents:
            tokens = list(map(fold_accents, tokens))
        stem = stemmer(self.stem)
        return [stem(token) for token in tokens if not (self.stop_words and token in _STOP_WORDS)]


_STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()  # noqa: SIM905 (thirty-three quoted words read worse)
)
"""Lucene's English list."""


class Bm25:
    """The BM25 retriever. Passages without any query word are never returned."""

    name = "bm25"
    absent_score = 0.0
    """Of a passage without any query word."""

    def __init__(self, corpus: Corpus, settings: Bm25Settings, postings: Postings, vocabulary: dict[str, int]) -> None:
        self.corpus = corpus
        self.settings = settings
        self._postings = postings
        self._vocabulary = vocabulary

    @classmethod
    def over(cls, corpus: Corpus, settings: Bm25Settings | None = None) -> "Bm25":
        """Index a corpus in memory."""
        settings = adapt(settings or Bm25Settings(), corpus)
        return cls(corpus, settings, *build_postings(corpus, settings))

    @property
    def reads(self) -> ContextFields:
        return find_view(self.settings.view).fields

    @property
    def identity(self) -> str:
        unset = set() if self.settings.fold_accents else {"fold_accents"}  # earlier versions had no such setting
        return digest_of(self.name, self.corpus.digest, self.settings.model_dump_json(exclude=unset), str(ANALYZER))

    def seen(self, query: QueryLike) -> str:
        return render_view(self.settings.view, query, bare=True)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Up to `k` passages per query; none if no query word is in the vocabulary."""
        queries = as_queries(queries, k)
        return [self._search(self.seen(query), k) for query in queries]

    def _search(self, query: str, k: int) -> list[Hit]:
        terms = self.settings.tokenize(query)
        if any(len(units(term)) == 1 for term in terms):
            scores_N = self.scores(terms)
            rows = top_rows(scores_N, k, above=0.0)
            scores = scores_N[rows]
        else:
            rows, scores = self._postings.best(self._term_ids(terms), k)
        return [Hit(self.corpus[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]

    def scores(self, terms: Sequence[str]) -> Scores:
        """The score of every passage, in corpus order; 0 without a shared term."""
        single_terms = [term for term in terms if len(units(term)) == 1]
        scores_N = self._postings.scores(self._term_ids(term for term in terms if term not in single_terms))
        for term in single_terms:
            scores_N += self._unit_scores(term)
        return scores_N

    def _unit_scores(self, unit: str) -> Scores:
        """The score of every passage for one character of a script without blanks, of which the vocabulary holds pairs.
        The term frequency is that of the pair that is most frequent in the passage."""
        scores_N = np.zeros(len(self.corpus), dtype=np.float32)
        for term_id in self._terms_by_unit.get(unit, ()):
            rows, weights = self._postings.of(term_id)
            scores_N[rows] = np.maximum(scores_N[rows], weights / np.float32(_idf(len(rows), len(scores_N))))
        scores_N *= np.float32(_idf(int(np.count_nonzero(scores_N)), len(scores_N)))
        return scores_N

    @cached_property
    def _terms_by_unit(self) -> dict[str, list[int]]:
        """The terms that contain each character of a script without blanks."""
        terms: dict[str, list[int]] = {}
        for term, term_id in self._vocabulary.items():
            for unit in set(units(term)):
                terms.setdefault(unit, []).append(term_id)
        return terms

    def _term_ids(self, terms: Iterable[str]) -> list[int]:
        """The ids of the terms that are in the vocabulary, in order."""
        return [self._vocabulary[term] for term in terms if term in self._vocabulary]


def _idf(df: int, passages: int) -> float:
    return math.log(1 + (passages - df + 0.5) / (df + 0.5))


def build_postings(
    corpus: Corpus, settings: Bm25Settings, chunk_rows: int = CHUNK_ROWS
) -> tuple[Postings, dict[str, int]]:
    """The postings of a corpus, and the vocabulary (term → id)."""
    counts = count_terms(corpus, settings, chunk_rows)
    return weigh(counts, settings), _number_terms(counts.vocabulary)


def count_terms(passages: Iterable[Passage], settings: Bm25Settings, chunk_rows: int = CHUNK_ROWS) -> WordCounts:
    """The term counts of passages. Terms are in the order of their code points, whatever the passages' order."""
    term_ids = _TermIds(settings)
    remaining = iter(passages)  # a corpus on disk is read once
    chunks: list[ChunkCounts] = []
    while chunk := list(islice(remaining, chunk_rows)):
        chunks.append(_count_chunk(chunk, settings, term_ids))
    return join_counts(chunks, list(term_ids.vocabulary))


def weigh(counts: WordCounts, settings: Bm25Settings) -> Postings:
    """The weight of every term in every passage."""
    lengths_N, starts_V1 = counts.lengths_N, counts.starts_V1
    mean = lengths_N.mean() or 1.0  # a corpus without words has no weights either
    norms_N = settings.k1 * ((1 - settings.b) + settings.b * lengths_N / mean)
    # Few document frequencies differ, so Python's exact logarithm is affordable.
    dfs_V = np.diff(starts_V1)
    dfs_D, indices_V = np.unique(dfs_V, return_inverse=True)
    idfs_V = np.array([_idf(df, len(lengths_N)) for df in dfs_D.tolist()], dtype=np.float32)[indices_V]
    weights_P = np.empty(len(counts.rows_P), dtype=np.float32)
    for words_W, pairs in blocks_of(starts_V1):
        times_P = counts.times_P[pairs]
        idfs_P = np.repeat(idfs_V[words_W], dfs_V[words_W])
        weights_P[pairs] = times_P / (norms_N.take(counts.rows_P[pairs], mode="clip") + times_P) * idfs_P
    maxima_V = np.maximum.reduceat(weights_P, starts_V1[:-1]) if len(weights_P) else weights_P
    return Postings(weights_P, counts.rows_P, starts_V1, maxima_V, len(lengths_N))


class _TermIds(dict[str, int]):
    """Maps a word to the id of its stem, −1 for a stop word. Each word is stemmed once."""

    def __init__(self, settings: Bm25Settings) -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {}
        self._settings = settings

    def __missing__(self, word: str) -> int:
        stems = self._settings.terms([word])
        term_id = self.vocabulary.setdefault(stems[0], len(self.vocabulary)) if stems else -1
        self[word] = term_id
        return term_id


def _count_chunk(passages: Sequence[Passage], settings: Bm25Settings, term_ids: _TermIds) -> ChunkCounts:
    ids, lengths = array("i"), array("q")
    for passage in passages:
        start = len(ids)
        for text, weight in ((passage.title, settings.title_weight), (passage.text, settings.text_weight)):
            for _ in range(weight):
                ids.extend(map(term_ids.__getitem__, words(text)))
        lengths.append(len(ids) - start)
    return count_words(np.frombuffer(ids, dtype=np.int32), np.frombuffer(lengths, dtype=np.int64))


SETTINGS = Bm25Settings


def adapt(settings: Bm25Settings, corpus: Corpus) -> Bm25Settings:
    """Replace the stemmer `auto` by that of the corpus's language. Some passages, spread over the corpus, are read."""
    if settings.stem != AUTO:
        return settings
    step = max(1, len(corpus) // LANGUAGE_SAMPLE)
    texts = (f"{corpus[row].title} {corpus[row].text}" for row in range(0, len(corpus), step))
    return Bm25Settings.model_validate({**settings.model_dump(), "stem": language_of(texts) or "none"})


def build(corpus: Corpus, settings: Bm25Settings, folder: Path) -> None:
    """Write the index files into `folder`."""
    counts = count_terms(corpus, settings)
    postings = weigh(counts, settings)
    write_json(folder / VERSION, {"analyzer": ANALYZER})
    (folder / VOCABULARY).write_text(json.dumps(counts.vocabulary, ensure_ascii=False), encoding="utf-8")
    np.save(folder / "weights.npy", postings.weights_P)
    np.save(folder / "rows.npy", postings.rows_P)
    np.save(folder / "starts.npy", postings.starts_V1)
    np.save(folder / "maxima.npy", postings.maxima_V)


def load(folder: Path, corpus: Corpus, settings: Bm25Settings) -> Bm25:
    """Open an index; its arrays stay on disk and are mapped into memory."""
    if (version := read_json_object(folder / VERSION).get("analyzer")) != ANALYZER:
        raise DataError(f"{folder} was tokenised by version {version} of the analyzer; {WAY_OUT}")
    vocabulary = cast(list[str], read_json(folder / VOCABULARY))
    weights_P = cast(Scores, read_array(folder / "weights.npy", "f", mapped="r"))
    rows_P = cast(Rows32, read_array(folder / "rows.npy", "i", mapped="r"))
    starts_V1 = cast(Ints, read_array(folder / "starts.npy", "i", mapped="r"))
    maxima_V = cast(Scores, read_array(folder / "maxima.npy", "f"))
    postings = Postings(weights_P, rows_P, starts_V1, maxima_V, len(corpus))
    return Bm25(corpus, settings, postings, _number_terms(vocabulary))


def _number_terms(vocabulary: Sequence[str]) -> dict[str, int]:
    return {term: term_id for term_id, term in enumerate(vocabulary)}
