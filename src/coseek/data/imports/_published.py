"""Published question files: the data set and split of each, and the deal of their questions to train, dev and test.

FlashRAG publishes `SET/train.jsonl`, `SET/dev.jsonl` and `SET/test.jsonl`; not every set has all three.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import SettingError, nearest
from coseek.data.imports._sources import KINDS, kind_of
from coseek.data.question import Question
from coseek.data.selection import draw

SPLITS = ("train", "dev", "test")
Published: TypeAlias = Mapping[tuple[str, str], Sequence[Question]]
"""(data set, split of the publisher) → questions."""


def origin_of(path: Path) -> tuple[str, str] | None:
    """Data set and split of a file `SET/SPLIT.jsonl` (or another kind); `None` for a file of another name."""
    split = path.name.partition(".")[0]
    return (path.absolute().parent.name, split) if split in SPLITS and kind_of(path) in KINDS else None


def published_files(folder: Path) -> list[Path]:
    """The files `SET/SPLIT.jsonl` in a folder, by name."""
    return sorted(path for path in folder.glob("*/*") if path.is_file() and origin_of(path) is not None)


@dataclass(frozen=True)
class Deal:
    """Which published data sets become our splits."""

    train: tuple[str, ...] = ()
    """Data sets whose training questions become `train` and `dev`."""
    test: tuple[str, ...] = ()
    """Data sets whose test questions become `test`; dev questions where a set has no test questions."""
    dev_share: float = 0.01
    """Share of the training questions that becomes `dev`, drawn with every data set in its share."""

    def __post_init__(self) -> None:
        if not (self.train or self.test):
            raise SettingError("name the data sets of --train or --test, such as --train nq,hotpotqa")
        if not 0 <= self.dev_share < 1:
            raise SettingError(f"--dev-share is a share from 0 to below 1, not {self.dev_share:g}")

    def leaves_alone(self, sources: Sequence[Path]) -> set[Path]:
        """The published files in folders among `sources` that are of no set of the deal."""
        files = [path for source in sources if source.is_dir() for path in published_files(source)]
        return {path for path in files if path.parent.name not in (*self.train, *self.test)}

    def apply(self, published: Published) -> dict[str, list[Question]]:
        """Split → questions, set by set. Raises `SettingError` for a set that the sources do not hold."""
        training = [one for name in self.train for one in _questions(published, name, ("train",))]
        dev = {one.id for one in draw(training, round(self.dev_share * len(training)), 0)}
        splits = {
            "train": [one for one in training if one.id not in dev],
            "dev": [one for one in training if one.id in dev],
            "test": [one for name in self.test for one in _questions(published, name, ("test", "dev"))],
        }
        return {name: questions for name, questions in splits.items() if questions}


def _questions(published: Published, name: str, splits: Sequence[str]) -> Sequence[Question]:
    for split in splits:
        if found := published.get((name, split)):
            return found
    known = sorted({one for one, split in published if split in splits})
    has = ", ".join(known) or "none"
    raise SettingError(
        f"the sources hold no {splits[0]} questions of {name!r}{nearest(name, known)} They have those of: {has}"
    )
