"""Row: one label set as a trainer sees it, and which rows, with which negatives, make up which update. No torch."""

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.data.passage import Passage
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import LabelSet
from coseek.retrieval.query import Query
from coseek.retrieval.vectors.embedding_retriever import passage_text

Seen: TypeAlias = Callable[[Query], str]
"""What an encoder's view makes of a query."""


@dataclass(frozen=True, slots=True)
class ExamplePassage:
    """A passage of a row."""

    id: str
    text: str

    @classmethod
    def of(cls, passage: Passage) -> "ExamplePassage":
        return cls(passage.id, passage_text(passage))


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """What one search asked, and the passages that were labelled for it."""

    turn: tuple[str, ...]
    """Which turn of which trajectory, for people; rows of one turn share it."""
    question: str
    """What the run was asked; rows of one question share it."""
    query: str
    """What the encoder is shown: the query through its view, without the prompt. What is right for one row is never
    wrong for another with the same question or the same query (`batch.py`)."""
    positive: ExamplePassage
    negatives: tuple[ExamplePassage, ...]
    """In the label set's order."""
    candidates: tuple[ExamplePassage, ...] = ()
    """What `targets` weigh; empty where there are none."""
    targets: tuple[float, ...] = ()

    @classmethod
    def of(cls, label: LabelSet, seen: Seen) -> "TrainingExample":
        passages = {candidate.passage.id: ExamplePassage.of(candidate.passage) for candidate in label.candidates}
        return cls(
            turn=label.turn.key,
            question=label.question.question,
            query=seen(label.query),
            positive=passages[label.positive],
            negatives=tuple(passages[ident] for ident in label.negatives),
            candidates=tuple(passages.values()) if label.targets is not None else (),
            targets=label.targets or (),
        )


def read_labels(folders: Iterable[str]) -> list[LabelSet]:
    """All label sets of some label folders, in their order."""
    labels: list[LabelSet] = []
    for name in folders:
        found = list(LabelFolder(Path(name)).sets())
        if not found:
            raise DataError(
                f"{name} holds no label sets; its dropped.jsonl says why turns gave none, and turns that faults left "
                "undone, which are not in there, are tried again by `coseek label` with --resume"
            )
        labels += found
    return labels


def split_by_question(labels: Sequence[LabelSet], share: float, seed: int) -> tuple[list[LabelSet], list[LabelSet]]:
    """(to train on, held out). A question's turns stay together, and whether it is held out follows from its text and
    the seed alone: not from the other questions, their order, or the data set's ids."""

    def held(text: str) -> bool:
        digest = hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < share * 2**64

    out = {text: held(text) for text in {label.question.question for label in labels}}
    train = [label for label in labels if not out[label.question.question]]
    return train, [label for label in labels if out[label.question.question]]


@dataclass(frozen=True, eq=False)
class ExampleOrder:
    """Which rows make up which update: a pure function of the seed and the update's number, so there is nothing to
    save. Every epoch is the rows in a new shuffle; an update may reach over the end of one."""

    rows: Sequence[TrainingExample]
    batch_size: int
    negatives: int
    """Negatives of a row at most; of more, so many are drawn, others in every epoch."""
    seed: int

    def steps(self, epochs: float) -> int:
        """Updates of so many epochs."""
        return max(1, round(epochs * len(self.rows) / self.batch_size))

    def batch(self, step: int) -> list[TrainingExample]:
        """The rows of update `step`, from 0. A row is in it once, even where there are fewer rows than it has room."""
        chosen: dict[int, int] = {}
        for position in range(step * self.batch_size, (step + 1) * self.batch_size):
            epoch, place = divmod(position, len(self.rows))
            chosen.setdefault(self._shuffled(epoch)[place], epoch)
        return [self._row(number, epoch) for number, epoch in chosen.items()]

    @lru_cache(maxsize=4)  # noqa: B019 (an order lives as long as its training)
    def _shuffled(self, epoch: int) -> list[int]:
        numbers = list(range(len(self.rows)))
        random.Random(f"{self.seed}/epoch/{epoch}").shuffle(numbers)
        return numbers

    def _row(self, number: int, epoch: int) -> TrainingExample:
        row = self.rows[number]
        if len(row.negatives) <= self.negatives:
            return row
        rng = random.Random(f"{self.seed}/negatives/{epoch}/{number}")
        places = sorted(rng.sample(range(len(row.negatives)), self.negatives))
        kept = tuple(row.negatives[place] for place in places)
        return TrainingExample(row.turn, row.question, row.query, row.positive, kept, row.candidates, row.targets)
