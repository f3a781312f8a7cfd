"""Synthesis: a data set with questions made from its corpus alone, written as a folder, all or nothing.

corpus.jsonl, questions.{train,dev,test}.jsonl     the questions that passed every gate
unanswerable/                                      the same data set with passages withheld
synthesis.json                                     settings, counts, what each gate dropped
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, atomic_folder, check_output_folder, check_replaceable, write_json
from coseek.core.lock import lock_beside
from coseek.core.settings import dump_settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question, save_questions
from coseek.data.unanswerable import twins, withhold
from coseek.graders.generator import Generator
from coseek.synthesis.graph import HopGraph
from coseek.synthesis.maker import SPLITS, QuestionMaker, Tell, by_hops
from coseek.synthesis.question_writer import QuestionWriter
from coseek.synthesis.self_play import Solver
from coseek.synthesis.settings import SynthesisSettings

RECORD = "synthesis.json"
UNANSWERABLE = "unanswerable"
_FILES = re.compile(rf"{re.escape(RECORD)}|({UNANSWERABLE}/)?(corpus|questions\.({'|'.join(SPLITS)}))\.jsonl")


@dataclass(frozen=True, slots=True)
class SynthesisSummary:
    """The counts of a synthesis."""

    passages: int
    questions: dict[str, dict[int, int]]
    """Split → hops → questions."""
    dropped: dict[str, int]
    """`gate: reason` → questions."""
    unanswerable: int

    def __str__(self) -> str:
        """`7,033 train, 155 dev`."""
        return ", ".join(f"{sum(hops.values()):,} {split}" for split, hops in self.questions.items())

    def to_json(self) -> JsonObject:
        questions: JsonObject = {
            split: {str(hops): count for hops, count in counts.items()} for split, counts in self.questions.items()
        }
        dropped: JsonObject = {**self.dropped}
        return {
            "passages": self.passages, "questions": questions, "dropped": dropped, "unanswerable": self.unanswerable,
        }  # fmt: skip


def synthesize(
    folder: Path, out: Path, settings: SynthesisSettings, writer: QuestionWriter | None = None,
    reader: Generator | None = None, tell: Tell = lambda what, done, total: None, solver: Solver | None = None,
) -> SynthesisSummary:  # fmt: skip
    """Make questions from the corpus of a data-set folder and write the data set `out`.

    The same corpus, settings and models give the same files. `writer` puts questions into its own words; `reader` tests
    them besides the rules; of those that a `solver` tries, the ones at the edge of what it can do are kept. Raises
    `DataError` for a corpus that gives none; nothing is written then. `InUse` where another process writes there.
    """
    with lock_beside(out, again=False):
        check_output_folder(out, RECORD)
        check_replaceable(out, _FILES.fullmatch, "a synthesis")
        if out.exists() and folder.resolve() == out.resolve():
            raise DataError(f"{out} is the data set that is read; choose another folder for --out")
        corpus = Dataset(folder).corpus
        maker = QuestionMaker(HopGraph(corpus, settings.support), settings, writer, reader, solver)
        questions = maker.make(tell)
        if not questions:
            reasons = "; ".join(f"{reason} ({count:,})" for reason, count in maker.dropped.most_common(2))
            less = f", or set support={settings.support - 1}" if settings.support > 2 else ""
            raise DataError(
                f"the {len(corpus):,} passages of {folder} give no questions{f': {reasons}' if reasons else ''}; they "
                f"need English sentences that say the same kind of thing of several names; give more documents{less}"
            )
        split_questions: dict[str, list[Question]] = dict(questions.items())
        everything = [question for asked in questions.values() for question in asked]
        withheld = withhold(everything, settings.unanswerable, random.Random(f"{settings.seed} withheld"))
        pairs = twins(split_questions, withheld)
        summary = SynthesisSummary(
            len(corpus),
            {split: by_hops(asked) for split, asked in questions.items()},
            dict(maker.dropped.most_common()),
            sum(not question.answerable for asked in pairs.values() for question in asked),
        )

        def fill(part: Path) -> None:
            _save(part, corpus, split_questions)
            if withheld:
                kept = Corpus((one for one in corpus if one.id not in withheld), "the corpus of the unanswerable twins")
                _save(part / UNANSWERABLE, kept, pairs)
            write_json(
                part / RECORD, {"settings": dump_settings(settings), "corpus": corpus.digest, **summary.to_json()}
            )

        atomic_folder(out, fill)
        return summary


def _save(folder: Path, corpus: Corpus, questions: Mapping[str, list[Question]]) -> None:
    corpus.save(folder / "corpus.jsonl")
    for split, asked in questions.items():
        save_questions(folder / f"questions.{split}.jsonl", asked)
