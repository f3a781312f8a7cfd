"""Data order: the sequence of questions, a pure function of a seed and a position. Only the position is saved."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from coseek.core.errors import DataError
from coseek.data.question import Question


@dataclass(frozen=True)
class QuestionStream:
    """An endless stream of questions, reshuffled every epoch."""

    questions: Sequence[Question]
    seed: int
    balance_hops: bool = False
    """Take the numbers of hops in turn, each from a stream of its own, so that any slice of the stream has equal shares
    of them. Otherwise they have their shares of the questions."""

    def __post_init__(self) -> None:
        if not self.questions:
            raise DataError("there are no questions to train on; give at least one")

    def take(self, position: int, count: int) -> list[Question]:
        """Return the `count` questions from `position` on."""
        if self.balance_hops:
            return self._take_in_turn(position, count)
        taken: list[Question] = []
        while len(taken) < count:
            epoch, start = divmod(position + len(taken), len(self.questions))
            order = list(range(len(self.questions)))
            random.Random(f"{self.seed}/epoch/{epoch}").shuffle(order)
            taken += [self.questions[index] for index in order[start : start + count - len(taken)]]
        return taken

    def _take_in_turn(self, position: int, count: int) -> list[Question]:
        """The questions from `position` on, of the streams in turn."""
        streams = len(self._streams)
        taken: dict[int, Question] = {}
        for number, stream in enumerate(self._streams):
            positions = [each for each in range(position, position + count) if each % streams == number]
            start = positions[0] // streams if positions else 0
            taken |= zip(positions, stream.take(start, len(positions)), strict=True)
        return [taken[each] for each in sorted(taken)]

    @cached_property
    def _streams(self) -> list["QuestionStream"]:
        """One stream for each number of hops."""
        groups: dict[int, list[Question]] = {}
        for question in self.questions:
            groups.setdefault(question.hops or 0, []).append(question)
        return [QuestionStream(groups[hops], derive_seed(self.seed, "hops", hops)) for hops in sorted(groups)]


def derive_seed(*parts: int | str) -> int:
    """Hash a training's seed and a position in it to a seed. Unlike sums, hashes of neighbours do not coincide."""
    digest = hashlib.blake2b("/".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
