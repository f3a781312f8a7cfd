"""Data order: the sequence of questions, a pure function of a seed and a position. Only the position is saved."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from coseek.core.errors import DataError
from coseek.data.question import Question


@dataclass(frozen=True)
class QuestionStream:
    """An endless stream of questions, reshuffled every epoch."""

    questions: Sequence[Question]
    seed: int
    balance_hops: bool = False
    """Take the numbers of hops in turn, so that any slice of the stream has equal shares of them. Otherwise they have
    their shares of the questions."""

    def __post_init__(self) -> None:
        if not self.questions:
            raise DataError("there are no questions to train on; give at least one")

    def take(self, position: int, count: int) -> list[Question]:
        """Return the `count` questions from `position` on."""
        return [self._question_at(index) for index in range(position, position + count)]

    def _question_at(self, position: int) -> Question:
        if self.balance_hops:
            turn, number = divmod(position, len(self._streams))
            return self._streams[number]._question_at(turn)
        epoch, index = divmod(position, len(self.questions))
        return self.questions[epoch_order(self.seed, epoch, len(self.questions))[index]]

    @cached_property
    def _streams(self) -> list["QuestionStream"]:
        """One stream per number of hops."""
        groups: dict[int, list[Question]] = {}
        for question in self.questions:
            groups.setdefault(question.hops or 0, []).append(question)
        return [QuestionStream(groups[hops], derive_seed(self.seed, "hops", hops)) for hops in sorted(groups)]


@lru_cache(maxsize=8)
def epoch_order(seed: int, epoch: int, count: int) -> list[int]:
    """Return the indices of `count` items in the order of an epoch."""
    order = list(range(count))
    random.Random(f"{seed}/epoch/{epoch}").shuffle(order)
    return order


def derive_seed(*parts: int | str) -> int:
    """Hash a training's seed and a position in it to a seed. Unlike sums, hashes of neighbours do not coincide."""
    digest = hashlib.blake2b("/".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
