"""Noisy: answers a growing share of the searches of any retriever with random passages.

The curriculum of ZeroSearch without a language model: small enough for a laptop, and a control whose noise contains no
model errors. The trainer calls `progress`.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import LayeredRetriever, Retriever, Shortfall
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings

# Noise curriculum: the share of noisy searches of a simulated or noisy retriever at each training step.
#
# p_i = p_s + (b^(i/m) − 1) / (b − 1) · (p_e − p_s) at step i of m (Sun et al. 2025, ZeroSearch, arXiv 2505.04588).
# With b > 1 the noise grows slowly at first and faster later.


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The current training step, from 0 to `steps`."""

    step: int
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.step <= self.steps:
            raise SettingError(f"step {self.step} of {self.steps} steps is invalid; steps count from 0 to the last")


class NoiseSchedule(Settings):
    """The share of searches that are answered with noise."""

    start: float = Field(default=0.0, ge=0, le=1)
    """p_s, at the first step."""
    end: float = Field(default=0.0, ge=0, le=1)
    """p_e, at the last step. Equal to `start` for a constant rate."""
    base: float = Field(default=4.0, gt=0)
    """b: 1 is linear; above 1 the noise comes late, below 1 early."""
    seed: int = 0
    """Seed, query and step together decide whether a search gets noise."""

    def rate(self, at: TrainingProgress) -> float:
        """p_i."""
        progress = at.step / at.steps
        log_base = math.log(self.base)
        # expm1 is accurate for b near 1, whose limit is linear.
        share = progress if log_base == 0.0 else math.expm1(progress * log_base) / math.expm1(log_base)
        return self.start + share * (self.end - self.start)

    def is_noisy(self, query: str, at: TrainingProgress) -> bool:
        """Whether this query gets noise at this step. A hash decides, so that other queries do not matter."""
        digest = hashlib.sha256(f"{self.seed}:{at.step}:{query}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < self.rate(at)


class CurriculumSettings(Settings):
    """A noise schedule. A retriever is opened at its start; the trainer calls `progress`."""

    noise: NoiseSchedule = NoiseSchedule()
    """The share of searches that are answered with noise."""


@dataclass
class NoiseStats:
    """Counts since the retriever was opened."""

    searches: int = 0
    noisy: int = 0


class Curriculum:
    """Base of retrievers with a noise schedule."""

    def __init__(self, settings: CurriculumSettings) -> None:
        self.stats = NoiseStats()
        self._noise = settings.noise
        self.varies = settings.noise.start != settings.noise.end
        """Whether the rate depends on the progress; a training that samples ahead reads it."""
        self._stage = TrainingProgress(0, 1)

    def progress(self, step: int, steps: int) -> None:
        """Set the training progress: later searches get the noise of `step` of `steps`."""
        self._stage = TrainingProgress(step, steps)

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        return (Shortfall(self.stats.noisy, self.stats.searches, "searches were answered with noise"),)

    def _are_noisy(self, texts: Iterable[str]) -> list[bool]:
        """Whether each query text gets noise."""
        return [self._noise.is_noisy(text, self._stage) for text in texts]


class NoisySettings(CurriculumSettings):
    """The retriever, and its noise."""

    over: str | dict[str, object]
    """The retriever for the other searches: an index folder, a URL, a YAML file, or settings."""
    shows: Literal["random", "nothing"] = "random"
    """The kind of noise: random passages, or no passage."""


class NoisyRetriever(LayeredRetriever, Curriculum):
    """Answers some queries with passages drawn uniformly from the corpus of the other retriever."""

    name = "noisy"
    keeps_scores = True

    def __init__(self, over: Retriever, settings: NoisySettings) -> None:
        if over.corpus is None:
            raise SettingError(f"noise is drawn from a corpus, and {over.name} has no local one; use an index")
        LayeredRetriever.__init__(self, over)
        Curriculum.__init__(self, settings)
        self.settings = settings
        self._random = RandomRetriever(over.corpus, RandomSettings(seed=settings.noise.seed))

    @property
    def identity(self) -> str:
        kind = () if self.settings.shows == "random" else (self.settings.shows,)
        return digest_of(self.name, self.settings.noise.model_dump_json(), str(self._stage), self.over.identity, *kind)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        # Noise depends on the text that the retriever sees, so that equal texts get equal hits.
        texts = [self.seen(query) for query in queries]
        noisy = self._are_noisy(texts)
        noisy_texts = [text for text, is_noisy in zip(texts, noisy, strict=True) if is_noisy]
        noise = self._random.search(noisy_texts, k) if self.settings.shows == "random" else [[] for _ in noisy_texts]
        clean = self.over.search([query for query, is_noisy in zip(queries, noisy, strict=True) if not is_noisy], k)
        self.stats.searches += len(queries)
        self.stats.noisy += sum(noisy)
        noise_hits, clean_hits = iter(noise), iter(clean)
        return [next(noise_hits if is_noisy else clean_hits) for is_noisy in noisy]


SETTINGS = NoisySettings


def open(settings: NoisySettings, opening: OpenContext) -> NoisyRetriever:
    """Open the other retriever."""
    return NoisyRetriever(opening.open(settings.over), settings)
