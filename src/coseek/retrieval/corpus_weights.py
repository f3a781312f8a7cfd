"""Corpus weights: how far each part of a hybrid can be trusted with a corpus, found without questions.

Every part searches for passages of the corpus with one of their own sentences. A part that does not find them cannot
read this corpus, such as an English encoder over Chinese text, and is given less or no weight:

    weight = prior · (MRR / best MRR − LOW) / (HIGH − LOW), the fraction between 0 and 1

where MRR is the mean of 1 / rank of the sentence's passage, 0 beyond rank `DEPTH`, and the prior is 3 for a part that
compares vectors and 1 for BM25: a passage's own words favour BM25, so how far above HIGH a part is says little.

The constants were chosen on the eight public sets of `bench.real`, with MiniLM: it has .79 to .97 of BM25's MRR in
English and .43 in Chinese, and with equal weights the fusion is .04 all-gold@5 below MiniLM on MuSiQue.
"""

import random
import re
from collections.abc import Sequence
from statistics import fmean

from coseek.data.passage import Corpus
from coseek.retrieval.retriever import Retriever

LOW, HIGH = 1 / 2, 3 / 4
VECTORS = 3.0
"""Weight of a part that compares vectors, beside that of BM25."""
SENTENCES = 100
DEPTH = 10
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_LONG_ENOUGH = 15
"""Characters of a sentence that may tell its passage."""
_LONGEST = 300
_READ = 5_000
"""Characters of a passage that are cut into sentences."""


def corpus_weights(parts: Sequence[Retriever], corpus: Corpus) -> tuple[float, ...]:
    """One weight ≥ 0 a part; the best part's is its prior. A pure function of the parts and the corpus: the sentences
    are a seeded sample."""
    rng = random.Random(0)
    rows = rng.sample(range(len(corpus)), min(SENTENCES, len(corpus)))
    wanted = [corpus[row].id for row in rows]
    queries = [sentence_of(corpus[row].text, rng) or corpus[row].title for row in rows]
    means: list[float] = []
    for part in parts:
        found = [[hit.passage.id for hit in hits] for hits in part.search(queries, DEPTH)]
        means.append(fmean(_reciprocal_rank(ident, ids) for ident, ids in zip(wanted, found, strict=True)))
    if not any(means):
        return (1.0,) * len(parts)
    trust = [min(1.0, max(0.0, (mean / max(means) - LOW) / (HIGH - LOW))) for mean in means]
    return tuple(one if part.name == "bm25" else VECTORS * one for part, one in zip(parts, trust, strict=True))


def sentence_of(text: str, rng: random.Random) -> str:
    """One sentence of a text; the whole text where it has none that is long enough."""
    sentences = [one.strip() for one in _SENTENCE_END.split(text[:_READ]) if len(one.strip()) >= _LONG_ENOUGH]
    return (rng.choice(sentences) if sentences else text.strip())[:_LONGEST]


def _reciprocal_rank(ident: str, ids: Sequence[str]) -> float:
    return 1 / (ids.index(ident) + 1) if ident in ids else 0.0
