"""Hybrid: fuses the rankings of several retrievers, by weighted scores or by reciprocal ranks.

Equal weights are not safe: a part that cannot read the corpus makes the fusion much worse than the others. Where every
part is an index, weights that are not set are computed from the corpus (`corpus_weights`), at the first search.

A passage among the hits of one part only gets that part's share. A failed part fails the search, since a partial fusion
would be a different retriever.
"""

import json
import logging
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import or_
from statistics import fmean
from typing import Literal

from pydantic import Field

from coseek.core.errors import IndexMismatch, RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import ContextFields, QueryLike, as_queries
from coseek.retrieval.ranking import SMOOTHING, Scale, reciprocal_rank_fusion, weighted_fusion
from coseek.retrieval.retriever import LayeredRetriever, Retriever, absent_score, fields_read

# Corpus weights: how well each part of a hybrid searches a corpus, measured without questions.
#
# Every part searches for passages of the corpus with one of their own sentences. A part that does not retrieve them
# cannot read this corpus, such as an English encoder over Chinese text, and gets less or no weight:
#
#     weight = prior · (MRR / best MRR − LOW) / (HIGH − LOW), the fraction between 0 and 1
#
# where MRR is the mean of 1 / rank of the sentence's passage, 0 beyond rank `DEPTH`, and the prior is 3 for a part
# that compares vectors and 1 for one that compares words: a passage's own words favour these, so a ratio above HIGH
# carries no information.
#
# The constants were chosen on the eight public sets of `bench.real`, with MiniLM: it has .79 to .97 of BM25's MRR in
# English and .43 in Chinese, and with equal weights the fusion is .04 all-gold@5 below MiniLM on MuSiQue.

LOW, HIGH = 1 / 2, 3 / 4
VECTORS = 3.0
"""Weight of a part that compares vectors, relative to BM25."""
SENTENCES = 100
DEPTH = 10
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_MIN_CHARS = 15
"""Characters of a sentence that can identify its passage."""
_MAX_CHARS = 300
_PASSAGE_CHARS = 5_000
"""Characters of a passage that are split into sentences."""


def corpus_weights(parts: Sequence[Retriever], corpus: Corpus) -> tuple[float, ...]:
    """One weight ≥ 0 a part; the best part's is its prior. A pure function of the parts and the corpus: the sentences
    are a seeded sample."""
    rng = random.Random(0)
    rows = rng.sample(range(len(corpus)), min(SENTENCES, len(corpus)))
    gold_ids = [corpus[row].id for row in rows]
    queries = [sentence_of(corpus[row].text, rng) or corpus[row].title for row in rows]
    mrrs: list[float] = []
    for part in parts:
        ids_Q = [[hit.passage.id for hit in hits] for hits in part.search(queries, DEPTH)]
        ranks = (ids.index(gold) + 1 if gold in ids else math.inf for gold, ids in zip(gold_ids, ids_Q, strict=True))
        mrrs.append(fmean(1 / rank for rank in ranks))
    if not any(mrrs):
        return (1.0,) * len(parts)
    fractions = [min(1.0, max(0.0, (mrr / max(mrrs) - LOW) / (HIGH - LOW))) for mrr in mrrs]
    return tuple(
        (1.0 if part.name in _BY_WORDS else VECTORS) * share for part, share in zip(parts, fractions, strict=True)
    )


def sentence_of(text: str, rng: random.Random) -> str:
    """One sentence of a text; the whole text if no sentence is long enough."""
    sentences = [sentence.strip() for sentence in _SENTENCE_END.split(text[:_PASSAGE_CHARS])]
    sentences = [sentence for sentence in sentences if len(sentence) >= _MIN_CHARS]
    return (rng.choice(sentences) if sentences else text.strip())[:_MAX_CHARS]


log = logging.getLogger(__name__)

_INDEXES = ("bm25", "dense", "hnsw", "ivf-pq", "late-interaction", "sparse")
"""Indexes: cheap enough for the hundred searches that compute the weights."""
_BY_WORDS = ("bm25", "sparse")
"""Those that compare words."""

MAX_WEIGHT = 1e6
"""The largest weight: scores stay finite."""


class HybridSettings(Settings):
    """The retrievers, and the fusion method."""

    parts: list[str | dict[str, object]] = Field(min_length=2)
    """The retrievers: index folders, URLs, YAML files, or settings."""
    method: Literal["rrf", "weighted"] = "weighted"
    """`weighted` sums scaled scores; `rrf` sums reciprocal ranks and needs no comparable scores."""
    weights: list[float] | None = None
    """One weight ≥ 0 per part. Default: those of the corpus if every part searches an index, else equal ones."""
    smoothing: float = Field(default=SMOOTHING, ge=0)
    """`rrf`: the constant k; larger values flatten the ranks."""
    scale: Scale = "z"
    """`weighted`: normalisation of a part's scores, per query."""
    depth: int = Field(default=100, ge=1)
    """Candidates per part, or `k` if that is more."""


class Hybrid:
    """Fuses the rankings of its parts. Ties keep the order of the parts, then the order within a part."""

    name = "hybrid"

    def __init__(self, parts: Sequence[Retriever], settings: HybridSettings) -> None:
        self.under = self.parts = tuple(parts)
        self.settings = settings
        self.corpus = _shared_corpus(self.parts)
        self._weights = None if self._weighs_by_corpus() else _check_weights(settings.weights, len(self.parts))

    @property
    def reads(self) -> ContextFields:
        """The fields that any part reads."""
        return reduce(or_, map(fields_read, self.parts))

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"parts"})
        variants = ["weights of the corpus"] if self._weighs_by_corpus() else []
        variants += ["short rankings filled up"] if self.settings.method == "weighted" else []
        return digest_of(self.name, settings, *variants, *(part.identity for part in self.parts))

    @property
    def weights(self) -> tuple[float, ...]:
        """One weight per part. Those of the corpus are computed at first use, which takes about a second for a small
        encoder."""
        if self._weights is None and self.corpus is not None:
            self._weights = corpus_weights(list(map(_searched, self.parts)), self.corpus)
            shares = (f"{part.name} {weight:.2f}" for part, weight in zip(self.parts, self._weights, strict=True))
            log.info("weights of the hybrid: %s", ", ".join(shares))
        return self._weights or ()

    def _weighs_by_corpus(self) -> bool:
        are_indexes = all(_searched(part).name in _INDEXES for part in self.parts)
        return self.settings.weights is None and are_indexes and self.corpus is not None and len(self.corpus) > 0

    def seen(self, query: QueryLike) -> str:
        """The text that each part sees, as a JSON list."""
        return json.dumps([part.seen(query) for part in self.parts], ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        depth = max(k, self.settings.depth)
        lists = [self._search_part(number, part, queries, depth) for number, part in enumerate(self.parts, start=1)]
        max_hits = depth if self.corpus is None else min(depth, len(self.corpus))
        return [self._fuse(rankings, k, max_hits) for rankings in zip(*lists, strict=True)]

    def _search_part(self, number: int, part: Retriever, queries: Sequence[QueryLike], depth: int) -> list[list[Hit]]:
        try:
            return part.search(queries, depth)
        except RetrieverError as error:
            raise RetrieverError(f"part {number} of the hybrid ({part.name}) failed: {error}") from error

    def _fuse(self, rankings: Sequence[Sequence[Hit]], k: int, max_hits: int) -> list[Hit]:
        """Fuse one query's rankings, one per part, of at most `max_hits` hits each."""
        passages: dict[str, Passage] = {}
        scores: list[dict[str, float]] = []
        for hits in rankings:
            ranking: dict[str, float] = {}
            for hit in hits:
                key = self._key(hit.passage)
                passages.setdefault(key, hit.passage)
                ranking.setdefault(key, hit.score)
            scores.append(ranking)
        if self.settings.method == "rrf":
            fused = reciprocal_rank_fusion(map(list, scores), self.settings.smoothing, self.weights)
        else:
            absent_scores = [absent_score(part) for part in self.parts]
            fused = weighted_fusion(scores, self.weights, self.settings.scale, max_hits, absent_scores)
        hits = [Hit(passages[key], score) for key, score in fused.items()]
        ident, count = Counter(hit.passage.id for hit in hits).most_common(1)[0] if hits else ("", 1)
        if count > 1:
            raise RetrieverError(
                f"the parts of the hybrid use the id {ident!r} for different passages: they do not search one corpus"
            )
        return hits[:k]

    def _key(self, passage: Passage) -> str:
        """The key of a passage: its id within one corpus, else a digest of its content."""
        if self.corpus is not None:
            return passage.id
        return digest_of(*(" ".join(text.split()) for text in (passage.title, passage.text)))


def _searched(part: Retriever) -> Retriever:
    """The index that a part searches, under layers that keep its scores, such as a cache."""
    while isinstance(part, LayeredRetriever) and part.keeps_scores:
        part = part.over
    return part


def _check_weights(given: Sequence[float] | None, parts: int) -> tuple[float, ...]:
    weights = tuple(given) if given is not None else (1.0,) * parts
    if len(weights) != parts:
        raise SettingError(f"{len(weights)} weights for {parts} parts of a hybrid; give one weight per part")
    if not all(0 <= weight <= MAX_WEIGHT for weight in weights) or not any(weights):
        raise SettingError(
            f"the weights {list(weights)} of a hybrid must be 0 to {MAX_WEIGHT:g}, and one of them above 0"
        )
    return weights


def _shared_corpus(parts: Sequence[Retriever]) -> Corpus | None:
    """The corpus of all parts; `None` if one of them has no local corpus."""
    corpora = [part.corpus for part in parts if part.corpus is not None]
    for corpus in corpora[1:]:
        if corpus.digest != corpora[0].digest:
            raise IndexMismatch(
                f"the parts of a hybrid search different corpora (digests {corpora[0].digest[:12]} and "
                f"{corpus.digest[:12]}), so their ids do not correspond; make the indexes from one corpus"
            )
    return corpora[0] if len(corpora) == len(parts) else None


SETTINGS = HybridSettings


def open(settings: HybridSettings, opening: OpenContext) -> Hybrid:
    """Open the parts."""
    return Hybrid([opening.open(part) for part in settings.parts], settings)
