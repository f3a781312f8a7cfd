"""Noisy: answers a growing share of the searches of any retriever with random passages.

The curriculum of ZeroSearch without a language model: small enough for a laptop, and a control whose noise contains no
model errors. The trainer sets its progress with `progress`.
"""

from collections.abc import Sequence

from coseek.core.errors import SettingError
from coseek.core.fingerprint import digest_of
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.llm.noise import Curriculum, CurriculumSettings, NoiseStats
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import LayeredRetriever, Retriever, Shortfall
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings


class NoisySettings(CurriculumSettings):
    """The retriever, and its noise."""

    over: str | dict[str, object]
    """The retriever for the other searches: an index folder, a URL, a YAML file, or settings."""


class NoisyRetriever(LayeredRetriever, Curriculum):
    """Answers some queries with passages drawn uniformly from the corpus of the other retriever."""

    name = "noisy"

    def __init__(self, over: Retriever, settings: NoisySettings) -> None:
        if over.corpus is None:
            raise SettingError(f"noise is drawn from a corpus, and {over.name} has no local one; use an index")
        LayeredRetriever.__init__(self, over)
        Curriculum.__init__(self, settings)
        self.settings = settings
        self.stats = NoiseStats()
        self._random = RandomRetriever(over.corpus, RandomSettings(seed=settings.noise.seed))

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.noise.model_dump_json(), str(self._at), self.over.identity)

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        return self.stats.shortfalls

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        # Noise depends on what the retriever sees, so queries that look the same to it get the same answer.
        seen = [self.seen(query) for query in queries]
        struck = self._struck(seen)
        noise = iter(self._random.search([text for text, bad in zip(seen, struck, strict=True) if bad], k))
        found = iter(self.over.search([query for query, bad in zip(queries, struck, strict=True) if not bad], k))
        self.stats.searches += len(queries)
        self.stats.noisy += sum(struck)
        return [next(noise if bad else found) for bad in struck]


SETTINGS = NoisySettings


def open(settings: NoisySettings, opening: OpenContext) -> NoisyRetriever:
    """Open the other retriever."""
    return NoisyRetriever(opening.open(settings.over), settings)
