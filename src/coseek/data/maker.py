"""Data makers: the plug-ins `world` and `synthesis` of the laboratory, which make training data.

`world` makes a whole data set, a laptop world, for recipes, demonstrations and dry runs. `synthesis` makes questions
from the passages of a data set. Each has a settings class (`SETTINGS`), which recipes hold as a group.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from coseek.core.plugins import find_plugin
from coseek.core.settings import Settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question

PACKAGE = "coseek.lab.parts"


class MadeData(Protocol):
    """A data set in memory."""

    @property
    def corpus(self) -> Corpus: ...

    @property
    def questions(self) -> Mapping[str, list[Question]]:
        """By split, without empty splits."""
        ...

    def save(self, folder: Path) -> None:
        """Write a data-set folder, all or nothing."""
        ...


class WorldMaker(Protocol):
    """Interface of `world`. The same settings make the same data, byte for byte."""

    SETTINGS: "type[WorldGroup]"

    def chosen(self, settings: Mapping[str, object], name: str | None) -> "WorldGroup":
        """These settings, or those of the reference world `name`. Raises `UserError` for an unknown name."""
        ...

    def make(self, settings: "WorldGroup") -> MadeData: ...


class MadeQuestions(Protocol):
    """Summary of a synthesis; as a text, the questions of each split."""

    @property
    def warning(self) -> str:
        """A sentence with the way out where few of the wanted questions were made; empty otherwise."""
        ...


class QuestionSynthesis(Protocol):
    """Interface of `synthesis`."""

    SETTINGS: "type[SynthesisGroup]"

    def synthesize(self, folder: Path, out: Path, settings: "SynthesisGroup") -> MadeQuestions:
        """Write the data set `out`: the passages of `folder` with questions made from them. Raises `DataError` if the
        passages yield no question."""
        ...

    def training_questions(self, dataset: Dataset, train: str, settings: "SynthesisGroup") -> list[Question]:
        """The questions of the train split, in memory; none needs a passage that a question of the data set needs in
        another split than `train`."""
        ...

    def rename(self, corpus: Corpus, questions: Sequence[Question], seed: int) -> tuple[Corpus, list[Question]]:
        """Copies of passages and questions in which names are swapped."""
        ...


def world_maker() -> WorldMaker:
    """The maker of laptop worlds."""
    return cast(WorldMaker, find_plugin("data maker", PACKAGE, "world"))


def question_synthesis() -> QuestionSynthesis:
    """The maker of questions from passages."""
    return cast(QuestionSynthesis, find_plugin("data maker", PACKAGE, "synthesis"))


# Recipes hold the settings of these plug-ins as typed groups, so that a wrong setting is refused like any other.
if TYPE_CHECKING:

    class WorldGroup(Settings):
        """Settings of a world that the core uses."""

        seed: int = 0
        size: str = "small"
        train: int | None = None
        dev: int | None = None
        test: int | None = None

    class SynthesisGroup(Settings):
        """The core uses no setting."""

else:
    WorldGroup = world_maker().SETTINGS
    SynthesisGroup = question_synthesis().SETTINGS
