"""Synthesis: a data set with questions made from its corpus alone, written as a folder, all or nothing.

corpus.jsonl, questions.{train,dev,test}.jsonl     the questions that passed every gate
unanswerable/                                      the same data set with passages withheld
synthesis.json                                     settings, counts, what each gate dropped
"""

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, atomic_folder, check_output_folder, check_replaceable, write_json
from coseek.core.lock import lock_beside
from coseek.core.record import OMIT_EMPTY, Record
from coseek.core.settings import dump_settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question, save_questions, twins, withhold
from coseek.graders.generator import Generator
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.synthesis.gates import Solver
from coseek.lab.synthesis.graph import HopGraph
from coseek.lab.synthesis.maker import SPLITS, QuestionMaker, Tell, owned_passages
from coseek.lab.synthesis.proposals import QuestionProposer
from coseek.lab.synthesis.statements import StatementWriter

RECORD = "synthesis.json"
UNANSWERABLE = "unanswerable"
FEW = 0.05
"""Share of the wanted questions below which a synthesis warns."""
WAY_OUT = (
    "a language model proposes many more: coseek data synthesize DIR --out OUT --generator MODEL_OR_URL, then name OUT "
    "as the data set; or give more documents"
)
_FILES = re.compile(rf"{re.escape(RECORD)}|({UNANSWERABLE}/)?(corpus|questions\.({'|'.join(SPLITS)}))\.jsonl")


@dataclass(frozen=True, slots=True)
class SynthesisSummary(Record):
    """The counts of a synthesis."""

    passages: int
    questions: dict[str, dict[str, int]]
    """Split → hops → questions."""
    wanted: int
    """`count` of the settings."""
    dropped: dict[str, int]
    """`gate: reason` → questions."""
    unanswerable: int
    calls: Annotated[dict[str, int], OMIT_EMPTY]
    """Calls of a proposer by their outcome; empty without a proposer."""

    @property
    def warning(self) -> str:
        """A sentence with the way out if few of the wanted questions were made; empty otherwise."""
        count = sum(sum(hops.values()) for hops in self.questions.values())
        if count >= FEW * self.wanted:
            return ""
        way_out = "give more documents, or raise --limit" if self.calls else WAY_OUT
        return f"only {count:,} of the {self.wanted:,} questions wanted were made; {way_out}"

    def __str__(self) -> str:
        """`7,033 train, 155 dev`."""
        return ", ".join(f"{sum(hops.values()):,} {split}" for split, hops in self.questions.items())


def synthesize(
    folder: Path, out: Path, settings: SynthesisSettings, proposer: QuestionProposer | None = None,
    reader: Generator | None = None, tell: Tell = lambda what, done, total: None, solver: Solver | None = None,
    train: str | None = None,
) -> SynthesisSummary:  # fmt: skip
    """Make questions from the corpus of a data-set folder and write the data set `out`.

    The same corpus, settings and models give the same files. `proposer` writes the questions in place of the corpus's
    own phrases. `reader` tests them in addition to the rules. With a `solver`, only questions that it answers sometimes
    are kept. Gold passages of held-out questions of `folder` are in no path of train, nor those of its split `train`,
    if named, in one of dev or test. Raises `DataError` if no question can be made, `RunError` if a model fails
    throughout, and `InUse` if another process writes there; nothing is written then.
    """
    with lock_beside(out, again=False):
        check_output_folder(out, RECORD)
        check_replaceable(out, _FILES.fullmatch, "a synthesis")
        if out.exists() and folder.resolve() == out.resolve():
            raise DataError(f"{out} is the data set that is read; choose another folder for --out")
        dataset = Dataset(folder)
        corpus, owned = dataset.corpus, owned_passages(dataset, train)
        graph = HopGraph(corpus)
        maker = QuestionMaker(graph, settings, proposer or StatementWriter(graph), reader, solver, owned)
        questions = maker.make(tell)
        if not questions:
            raise DataError(_nothing_made_message(folder, len(corpus), maker, proposer))
        split_questions: dict[str, list[Question]] = dict(questions.items())
        all_questions = [question for of_split in questions.values() for question in of_split]
        withheld = withhold(all_questions, settings.unanswerable, random.Random(f"{settings.seed} withheld"))
        twin_questions = twins(split_questions, withheld)
        summary = SynthesisSummary(
            len(corpus),
            {
                split: dict(sorted(Counter(str(len(question.gold_ids)) for question in of_split).items()))
                for split, of_split in questions.items()
            },
            settings.count,
            dict(maker.dropped.most_common()),
            sum(not question.answerable for of_split in twin_questions.values() for question in of_split),
            proposer.tally if proposer is not None else {},
        )

        def fill(partial: Path) -> None:
            _save(partial, corpus, split_questions)
            if withheld:
                remaining = (passage for passage in corpus if passage.id not in withheld)
                _save(partial / UNANSWERABLE, Corpus(remaining, "the corpus of the unanswerable twins"), twin_questions)
            record: JsonObject = {"settings": dump_settings(settings), "corpus": corpus.digest, **summary.to_json()}
            write_json(partial / RECORD, record)

        atomic_folder(out, fill)
        return summary


def _nothing_made_message(folder: Path, passages: int, maker: QuestionMaker, proposer: QuestionProposer | None) -> str:
    """Why no question was made, and the way out."""
    reasons = "; ".join(f"{reason} ({count:,})" for reason, count in maker.dropped.most_common(2))
    problem = f"the {passages:,} passages of {folder} give no questions{f': {reasons}' if reasons else ''}"
    if proposer is not None:
        tally = ", ".join(f"{count:,} {name}" for name, count in proposer.tally.items())
        calls = f"{problem}; of the generator: {tally}{f' ({proposer.fault})' if proposer.fault else ''}; "
        return f"{calls}give more documents"
    return f"{problem}; without a model they need sentences like those of an English encyclopedia; {WAY_OUT}"


def _save(folder: Path, corpus: Corpus, questions: Mapping[str, list[Question]]) -> None:
    corpus.save(folder / "corpus.jsonl")
    for split, of_split in questions.items():
        save_questions(folder / f"questions.{split}.jsonl", of_split)
