"""Random: uniform passages, whatever is asked. The control that every retriever must beat."""

import random
from collections.abc import Sequence
from pathlib import Path

from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit
from coseek.retrieval.query import Query, QueryLike, as_queries


class RandomSettings(Settings):
    """What the noise depends on."""

    seed: int = 0
    """The same seed and query give the same passages."""


class RandomRetriever:
    """Draws without replacement. Its randomness is seeded by the query's text alone, so a batch changes nothing."""

    name = "random"

    def __init__(self, corpus: Corpus, settings: RandomSettings) -> None:
        self.corpus = corpus
        self.settings = settings

    @classmethod
    def over(cls, corpus: Corpus, settings: RandomSettings | None = None) -> "RandomRetriever":
        return cls(corpus, settings or RandomSettings())

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.corpus.digest, self.settings.model_dump_json())

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).text

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """`k` passages a query (all of them when there are fewer), scored 1, 1/2, 1/3, …"""
        queries = as_queries(queries, k)
        return [self._draw(self.seen(query), min(k, len(self.corpus))) for query in queries]

    def _draw(self, query: str, count: int) -> list[Hit]:
        rng = random.Random(f"{self.settings.seed}:{query}")
        # A shuffle that stops after `count` steps: unlike random.sample, a longer draw begins with the shorter one.
        moved: dict[int, int] = {}
        rows: list[int] = []
        for place in range(count):
            other = rng.randrange(place, len(self.corpus))
            rows.append(moved.get(other, other))
            moved[other] = moved.get(place, place)
        return [Hit(self.corpus[row], 1.0 / rank) for rank, row in enumerate(rows, start=1)]


SETTINGS = RandomSettings


def build(corpus: Corpus, settings: RandomSettings, folder: Path) -> None:
    """Nothing to write: the settings say everything."""


def load(folder: Path, corpus: Corpus, settings: RandomSettings) -> RandomRetriever:
    """Open an index (there are no files to open)."""
    return RandomRetriever(corpus, settings)
