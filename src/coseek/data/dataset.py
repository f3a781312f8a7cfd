"""Data set: a folder with `corpus.jsonl` and `questions.<split>.jsonl`."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from coseek.core.errors import DataError, nearest
from coseek.core.files import as_path
from coseek.data.passage import Corpus
from coseek.data.question import Question, load_questions

QUESTIONS = "questions"
"""The data set in a training folder of questions that a program gave; written before the record."""


class Dataset:
    """A data-set folder; files are read and checked on access."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = as_path(folder, "a data-set folder")
        if not self.folder.is_dir():
            raise DataError(
                f"there is no data folder {self.folder}; make one with `coseek world make` or `coseek data import`"
            )

    def __repr__(self) -> str:
        return f"Dataset({str(self.folder)!r})"

    @property
    def corpus_path(self) -> Path:
        return self.folder / "corpus.jsonl"

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus.load(self.corpus_path)

    @property
    def splits(self) -> list[str]:
        """The names of the splits, sorted."""
        return sorted(path.name[len("questions.") : -len(".jsonl")] for path in self.folder.glob("questions.*.jsonl"))

    def split_path(self, split: str) -> Path:
        """The file of a split."""
        return self.folder / f"questions.{split}.jsonl"

    def lacks(self, split: str) -> str:
        """Why there is no such split, and the way out."""
        if not self.splits:
            return f"{self.folder} has no questions; make some from its passages with `coseek data synthesize`"
        return f"{self.folder} has no split {split!r}{nearest(split, self.splits)} It has: {', '.join(self.splits)}"

    def questions(self, split: str) -> list[Question]:
        """The questions of a split; every gold id must be in the corpus, where there is one."""
        if split not in self.splits:
            raise DataError(self.lacks(split))
        path = self.split_path(split)
        questions = load_questions(path)
        if not self.corpus_path.exists():  # searched elsewhere: behind a URL, or by a function
            return questions
        check_gold_ids(
            questions, self.corpus, str(self.corpus_path), f"mend {path}, or take the corpus of its questions"
        )
        return questions


def check_gold_ids(questions: Iterable[Question], corpus: Corpus, where: str, way_out: str) -> None:
    """Raise `DataError` for a gold passage that is not in the corpus, which the message calls `where`."""
    for question in questions:
        for ident in question.gold_ids:
            if not corpus.has(ident):
                raise DataError(
                    f"question {question.id!r} names the gold passage {ident!r}, which is not in {where}; {way_out}"
                )
