"""Data order: the sequence of questions, a pure function of a seed and a position. Only the position is saved."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from coseek.core.errors import DataError
from coseek.data.question import Question


@dataclass(frozen=True)
class QuestionStream:
    """An endless stream of questions, shuffled anew every epoch."""

    questions: Sequence[Question]
    seed: int

    def __post_init__(self) -> None:
        if not self.questions:
            raise DataError("there are no questions to train on; give at least one")

    def take(self, position: int, count: int) -> list[Question]:
        """Return the `count` questions from `position` on."""
        taken: list[Question] = []
        while len(taken) < count:
            epoch, start = divmod(position + len(taken), len(self.questions))
            rows = list(range(len(self.questions)))
            random.Random(f"{self.seed}/epoch/{epoch}").shuffle(rows)
            taken += [self.questions[row] for row in rows[start : start + count - len(taken)]]
        return taken


def derive_seed(*parts: int | str) -> int:
    """Hash a run's seed and a position in the run to a seed. Unlike sums, hashes of neighbours do not coincide."""
    digest = hashlib.blake2b("/".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
