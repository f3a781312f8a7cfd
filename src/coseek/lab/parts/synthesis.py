"""Data maker `synthesis`: questions from the passages of a data set, and copies of questions with other names."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from coseek.core.settings import Settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question

if TYPE_CHECKING:
    from coseek.lab.synthesis.synthesis import SynthesisSummary

Split = Literal["train", "dev", "test"]


class SynthesisSettings(Settings):
    """Number, kinds and tests of the questions to make."""

    seed: int = 0
    """Seed of all draws."""
    count: int = Field(default=2000, ge=1)
    """Maximum number of questions."""
    hop_mix: tuple[float, ...] = (1.0, 2.0)
    """Weights of 1 and 2 hops. Missing questions of 2 hops are replaced by questions of 1."""
    dev: float = Field(default=0.1, ge=0, lt=0.5)
    """Approximate share of the questions in the dev split."""
    test: float = Field(default=0.1, ge=0, lt=0.5)
    """Approximate share of the questions in the test split."""
    reuse: int = Field(default=4, ge=1)
    """Maximum number of questions with the same passage in their path."""
    depth: int = Field(default=5, ge=1)
    """Number of top passages of the one search that must not answer."""
    edge: tuple[float, float] = (0.2, 0.8)
    """Minimum and maximum share of a solver's tries that are right, with a solver."""
    tries: int = Field(default=5, ge=2)
    """Tries of the solver per question."""
    proposals: int = Field(default=3, ge=1)
    """Maximum number of questions per passage, or per pair of passages."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of passages, and of pairs of passages, to request questions about; null: all, until there are
    `count` questions."""
    reply_tokens: int = Field(default=1024, ge=1)
    """Maximum tokens of a generator's reply."""
    negatives: int = Field(default=8, ge=0)
    """Hard negatives per question."""
    unanswerable: float = Field(default=0.3, ge=0, le=1)
    """Share of the questions that lose a passage in the data set of unanswerable twins; 0 writes no such data set."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "SynthesisSettings":
        if not 1 <= len(self.hop_mix) <= 2 or min(self.hop_mix) < 0 or sum(self.hop_mix) <= 0:
            raise ValueError("hop_mix takes the weights of 1 and 2 hops, at least 0 each and not all 0")
        if not 0 <= self.edge[0] <= self.edge[1] <= 1:
            raise ValueError("edge needs two shares from 0 to 1, the smaller one first")
        return self


SETTINGS = SynthesisSettings

# The functions import what they use: a recipe that only holds these settings loads no grammar and no grader.


def synthesize(folder: Path, out: Path, settings: SynthesisSettings) -> "SynthesisSummary":
    """Write the data set `out`: the passages of `folder` with questions made from them."""
    from coseek.lab.synthesis.synthesis import synthesize

    return synthesize(folder, out, settings)


def training_questions(dataset: Dataset, train: str, settings: SynthesisSettings) -> list[Question]:
    """The questions of the train split, without those about passages of other splits than `train`."""
    from coseek.lab.synthesis.graph import HopGraph
    from coseek.lab.synthesis.maker import QuestionMaker, owned_passages
    from coseek.lab.synthesis.statements import StatementWriter

    graph = HopGraph(dataset.corpus)
    maker = QuestionMaker(graph, settings, StatementWriter(graph), owned=owned_passages(dataset, train))
    return maker.make(lambda what, done, total: None).get("train", [])


def rename(corpus: Corpus, questions: Sequence[Question], seed: int) -> tuple[Corpus, list[Question]]:
    """Copies of questions in which names have changed places, and the passages with the new names."""
    from coseek.lab.synthesis.renaming import rename

    return rename(corpus, questions, seed)
