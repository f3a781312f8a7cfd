"""Examples: label sets as training examples, and their order over the updates. Does not import torch."""

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
"""Query → the text that the encoder's view makes of it."""


@dataclass(frozen=True, slots=True)
class ExamplePassage:
    """A passage of an example."""

    id: str
    text: str

    @classmethod
    def of(cls, passage: Passage) -> "ExamplePassage":
        return cls(passage.id, passage_text(passage))


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A search query with its labelled passages."""

    turn: tuple[str, ...]
    """Key of the turn, for display; examples of one turn share it."""
    question: str
    """The question of the trajectory; examples of one question share it."""
    query: str
    """Input of the encoder: the query in its view, without the prompt. A positive of one example is never a negative of
    another with the same question or the same query (`batch.py`)."""
    positive: ExamplePassage
    negatives: tuple[ExamplePassage, ...]
    """In the order of the label set."""
    candidates: tuple[ExamplePassage, ...] = ()
    """Passages of `targets`; empty without targets."""
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
    """Read all label sets of the label folders, in their order. Raises `DataError` for an empty folder."""
    labels: list[LabelSet] = []
    for name in folders:
        found = list(LabelFolder(Path(name)).sets())
        if not found:
            raise DataError(
                f"{name} holds no label sets; its dropped.jsonl gives the reason for each turn without labels; turns "
                "that faults left unlabelled are not listed there, and `coseek label --resume` tries them again"
            )
        labels += found
    return labels


def split_by_question(labels: Sequence[LabelSet], share: float, seed: int) -> tuple[list[LabelSet], list[LabelSet]]:
    """Split into (training, held-out) label sets. All turns of a question go to one side.

    The side depends on the question's text and the seed alone: not on other questions, their order, or ids.
    """

    def held(text: str) -> bool:
        digest = hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < share * 2**64

    out = {text: held(text) for text in {label.question.question for label in labels}}
    train = [label for label in labels if not out[label.question.question]]
    return train, [label for label in labels if out[label.question.question]]


@dataclass(frozen=True, eq=False)
class ExampleOrder:
    """The examples of each update, a pure function of the seed and the update's number, so no state is saved.

    Every epoch shuffles the examples anew. An update may span two epochs.
    """

    rows: Sequence[TrainingExample]
    batch_size: int
    negatives: int
    """Maximum negatives per example; from more, a new sample is drawn every epoch."""
    seed: int

    def steps(self, epochs: float) -> int:
        """Return the number of updates in `epochs` epochs."""
        return max(1, round(epochs * len(self.rows) / self.batch_size))

    def batch(self, step: int) -> list[TrainingExample]:
        """Return the examples of update `step`, from 0. Each occurs once, even if there are fewer than `batch_size`."""
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
