"""Random: returns uniformly drawn passages for any query. The baseline that every retriever must beat."""

import random
from collections.abc import Sequence
from pathlib import Path

from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries
from coseek.retrieval.ranking import rank_hits


class RandomSettings(Settings):
    """The seed of the draws."""

    seed: int = 0
    """Seed and query determine the passages."""


class RandomRetriever:
    """Draws without replacement. The seed of a draw includes the query's text, so the batch does not matter."""

    name = "random"
    reads = ContextFields()

    def __init__(self, corpus: Corpus, settings: RandomSettings | None = None) -> None:
        self.corpus = corpus
        self.settings = settings or RandomSettings()

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.corpus.digest, self.settings.model_dump_json())

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).text

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """`k` passages per query (all if there are fewer), with scores 1, 1/2, 1/3, …"""
        queries = as_queries(queries, k)
        return [self._draw(self.seen(query), min(k, len(self.corpus))) for query in queries]

    def _draw(self, query: str, count: int) -> list[Hit]:
        rng = random.Random(f"{self.settings.seed}:{query}")
        # A Fisher–Yates shuffle of `count` steps: unlike in random.sample, a short draw is a prefix of a longer one.
        shuffled: dict[int, int] = {}
        rows: list[int] = []
        for index in range(count):
            other = rng.randrange(index, len(self.corpus))
            rows.append(shuffled.get(other, other))
            shuffled[other] = shuffled.get(index, index)
        return rank_hits(self.corpus[row] for row in rows)


SETTINGS = RandomSettings


def build(corpus: Corpus, settings: RandomSettings, folder: Path) -> None:
    """Write nothing: the card holds the settings."""


def load(folder: Path, corpus: Corpus, settings: RandomSettings) -> RandomRetriever:
    """Open an index."""
    return RandomRetriever(corpus, settings)
