"""Noisy: any retriever whose searches are answered at random now and then, and the more often the longer one trains.

    retriever: noisy
    over: indexes/bm25
    noise: {start: 0.0, end: 0.5}

The curriculum of ZeroSearch without its language model: what it takes on a laptop, and a control where the model's own
mistakes are not part of the noise. The trainer says how far it is with `progress`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.llm.noise import NoiseSchedule, TrainingProgress
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings


class NoisySettings(Settings):
    """Which retriever is disturbed, and how."""

    over: str | dict[str, object]
    """The retriever that answers otherwise: an index folder, a URL, a YAML file, or settings."""
    noise: NoiseSchedule = NoiseSchedule()
    """How many searches are answered with random passages of its corpus, and from when on."""
    step: int = Field(default=0, ge=0)
    """How far training is when the retriever is opened; the trainer goes on from there with `progress`."""
    steps: int = Field(default=1, ge=1)
    """Steps in all."""


@dataclass
class NoisyStats:
    """What was answered since the retriever was opened."""

    searches: int = 0
    """Queries answered."""
    noisy: int = 0
    """Those of them that were answered at random."""


class Noisy:
    """Answers some queries with passages drawn uniformly from the corpus of the retriever underneath."""

    name = "noisy"

    def __init__(self, over: Retriever, settings: NoisySettings) -> None:
        if over.corpus is None:
            raise SettingError(f"noise is drawn from a corpus, and {over.name} has none at hand; use an index")
        self.over = over
        self.corpus: Corpus = over.corpus
        self.settings = settings
        self.stats = NoisyStats()
        self._at = TrainingProgress(settings.step, settings.steps)
        self._random = RandomRetriever.over(self.corpus, RandomSettings(seed=settings.noise.seed))

    def progress(self, step: int, steps: int) -> None:
        """Say that training is at `step` of `steps`: from now on the noise is that of this step."""
        self._at = TrainingProgress(step, steps)

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.noise.model_dump_json(), str(self._at), self.over.identity)

    def seen(self, query: QueryLike) -> str:
        return self.over.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        struck = [self.settings.noise.strikes(self.seen(query), self._at) for query in queries]
        # What is seen stands for the query, so that two queries which the retriever cannot tell apart share a fate.
        noise = iter(self._random.search([self.seen(q) for q, bad in zip(queries, struck, strict=True) if bad], k))
        found = iter(self.over.search([query for query, bad in zip(queries, struck, strict=True) if not bad], k))
        self.stats.searches += len(queries)
        self.stats.noisy += sum(struck)
        return [next(noise if bad else found) for bad in struck]


SETTINGS = NoisySettings


def open(settings: NoisySettings, opening: OpenContext) -> Noisy:
    """Open the retriever underneath."""
    return Noisy(opening.open(settings.over), settings)
