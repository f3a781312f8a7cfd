"""Order: which questions come when, as a pure function of a seed and a position. Nothing to save but the position."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from coseek.core.errors import DataError
from coseek.data.question import Question


@dataclass(frozen=True)
class QuestionStream:
    """An endless stream: every epoch is the questions in a new shuffle."""

    questions: Sequence[Question]
    seed: int

    def __post_init__(self) -> None:
        if not self.questions:
            raise DataError("there are no questions to train on; give at least one")

    def take(self, position: int, count: int) -> list[Question]:
        """The questions at `position`, `position + 1`, … of the stream."""
        taken: list[Question] = []
        while len(taken) < count:
            epoch, start = divmod(position + len(taken), len(self.questions))
            rows = list(range(len(self.questions)))
            random.Random(f"{self.seed}/epoch/{epoch}").shuffle(rows)
            taken += [self.questions[row] for row in rows[start : start + count - len(taken)]]
        return taken


def derive_seed(*parts: int | str) -> int:
    """A seed from a run's seed and a place in the run; unlike sums of them, neighbours share nothing."""
    digest = hashlib.blake2b("/".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
