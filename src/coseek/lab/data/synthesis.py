"""Data maker `synthesis`: questions from the passages of a data set, and copies of questions with other names."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.lab.synthesis.settings import SynthesisSettings

if TYPE_CHECKING:
    from coseek.lab.synthesis.synthesis import SynthesisSummary

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
