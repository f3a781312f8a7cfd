"""Data recipe: a paper's corpus, training and test questions from published files.

A recipe is a YAML file in `data/recipes`, or of the user. It names the files in the working directory with their
formats, and the number of questions that the paper takes from each data set. Other numbers are reported, not refused.

    coseek data import recipe qagent --out data/qagent
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from coseek.core.errors import DataError, SettingError
from coseek.core.plugins import find_yaml, yaml_names
from coseek.core.settings import Settings, load_settings
from coseek.data.dataset import QuestionFilter
from coseek.data.imports import read_sources, source_files
from coseek.data.imports._sources import ImportedData, SplitAssignment
from coseek.data.passage import Passage
from coseek.data.question import Question

FOLDER = Path(__file__).parent.parent / "recipes"
OTHER_SIZES = "questions here, and in the paper"


class RecipePart(Settings):
    """Files of one format."""

    format: str
    """One of `coseek data import`."""
    files: tuple[Path, ...]
    """Files or folders."""
    settings: dict[str, object] = Field(default={})
    """The format's settings."""


class DataRecipe(Settings):
    """The files to read, and the questions to take from them."""

    about: str
    """One line of description."""
    fetch: tuple[str, ...] = ()
    """Commands or pages to get the files, shown if a file is missing."""
    parts: tuple[RecipePart, ...]
    """The files by format."""
    train: dict[str, int | None] = Field(default={})
    """Data set → the paper's number of training questions, 1 % of which become dev; null: not stated."""
    test: dict[str, int | None] = Field(default={})
    """Data set → the paper's number of test questions; dev questions if a set has no test questions."""
    ids: dict[str, Path] = Field(default={})
    """Data set → a file that lists its test questions (`select.ids`)."""

    @property
    def deal(self) -> SplitAssignment:
        return SplitAssignment(tuple(self.train), tuple(self.test))

    def opened(self) -> Iterator[tuple[RecipePart, list[Path]]]:
        """Each part with its files, without those of other data sets. Raises `DataError` for a missing file."""
        for path in (*(path for part in self.parts for path in part.files), *self.ids.values()):
            if not path.exists():
                raise DataError(f"there is no {path} in the working directory; get the files by:", *self.fetch)
        for part in self.parts:
            untouched_files = self.deal.leaves_alone(part.files)
            yield part, [file for file in source_files(part.format, part.files) if file not in untouched_files]

    def dealt(self, readings: Sequence[ImportedData]) -> dict[str, list[Question]]:
        """Split → questions."""
        published: dict[tuple[str, str], Sequence[Question]] = {}
        for reading in readings:
            published |= reading.published
            known_names = {name for name, _ in reading.published}
            for question in reading.questions:
                if question.dataset and question.dataset not in known_names:  # a benchmark without splits
                    published[question.dataset, "test"] = [*published.get((question.dataset, "test"), ()), question]
        for name, path in self.ids.items():
            for split in [split for split in ("test", "dev") if (name, split) in published][:1]:
                published[name, split] = QuestionFilter(ids=str(path)).apply(published[name, split])
        return self.deal.apply(published)

    def other_sizes(self, splits: Mapping[str, Sequence[Question]]) -> Iterator[str]:
        """The data sets whose sizes differ from the paper's."""
        test = splits.get("test", ())
        train = [*splits.get("train", ()), *splits.get("dev", ())]
        for split, sizes, questions in (("train", self.train, train), ("test", self.test, test)):
            counts = Counter(question.dataset for question in questions)
            for name, size in sizes.items():
                if size not in (None, counts[name]):
                    yield f"{name} {split} {counts[name]:,} and {size:,}"


def recipe_names() -> list[str]:
    return yaml_names(FOLDER)


def files(sources: Sequence[Path]) -> list[Path]:
    """The recipe and its files. Raises `UserError` for an unknown recipe or a missing file."""
    if len(sources) != 1:
        raise SettingError("name one data recipe; it says which files it reads")
    path = find_yaml("data recipe", FOLDER, str(sources[0]))
    return [path, *(file for _, paths in load_settings(DataRecipe, path).opened() for file in paths)]


def read(sources: Sequence[Path]) -> ImportedData:
    """Read the files of the recipe, lazily with the passages."""
    recipe = load_settings(DataRecipe, sources[0])
    readings = [read_sources(part.format, paths, part.settings)[0] for part, paths in recipe.opened()]
    splits, notes, sizes = dict[str, list[Question]](), Counter[str](), list[str]()

    def passages() -> Iterator[Passage]:
        for reading in readings:
            yield from reading.passages
            notes.update(reading.notes)
        splits.update(recipe.dealt(readings))
        sizes.extend(recipe.other_sizes(splits))

    alone = all(reading.alone for reading in readings)
    return ImportedData(passages(), (), notes, splits, named={OTHER_SIZES: sizes}, alone=alone)
