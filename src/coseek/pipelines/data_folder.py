"""Data folder: a user's data set, checked before anything is trained, with generated questions if it has none; and the
questions and retrievers of a table's columns."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coseek.core.errors import DataError, SettingError
from coseek.core.files import atomic_folder, link_files
from coseek.core.text import counted
from coseek.data.dataset import Dataset, draw
from coseek.data.maker import SynthesisGroup, question_synthesis, world_maker
from coseek.data.question import Question, load_questions, save_questions, unmatched_notes
from coseek.pipelines.agent_recipe import AgentRecipe, DataSettings
from coseek.pipelines.stages import candidates, select_settings
from coseek.retrieval.retriever import Retriever

SET_ASIDE = 0.1
"""Share of the training questions that a missing dev or test split gets."""


def check_data_folder(name: str, setting: str = "", split: str = "train", usual: str = "train") -> None:
    """Refuse a folder that is not a data set, and a missing split if it is not the `usual` one. `setting` names the
    folder."""
    folder, named_by = Path(name).expanduser(), f", which {setting} names" if setting else ""
    if not folder.exists():
        raise DataError(
            f"there is no folder {folder}{named_by}; check the path, or make it: "
            f"coseek data import documents FILES --out {folder}"
        )
    if (folder / "index.json").is_file():
        raise DataError(f"{folder}{named_by} is an index; name the data set that it was made from")
    if not (folder / "corpus.jsonl").is_file():
        import_name = f"{folder.name or 'my'}-data"
        problem = "is a file" if folder.is_file() else "has no corpus.jsonl" if any(folder.iterdir()) else "is empty"
        raise DataError(
            f"{folder}{named_by} {problem} and is not a data set; import the documents first: "
            f"coseek data import documents {folder} --out {import_name}, then name {import_name}"
        )
    dataset = Dataset(folder)
    if split != usual and split not in dataset.splits:
        raise SettingError(dataset.lacks(split))


def make_data(data: DataSettings, folder: Path, say: Callable[[str], None]) -> None:
    """Make `folder`, the data set of an agent's training, unless it exists or the recipe's data set has all splits.

    Raises `DataError` if a split would be missing or empty.
    """
    if data.folder is not None and data.synthesis is not None:
        make_questions(data.folder, folder, data.train, data.synthesis, say)
    if data.world is not None and not folder.exists():
        world_maker().make(data.world).save(folder)
    source = Dataset(folder if data.folder is None or folder.exists() else Path(data.folder))
    if missing := missing_splits(source, data):
        _set_aside(source, data.train, missing, folder)
        say(
            f"{source.folder} has no questions in its split {' and '.join(missing)}; a tenth of the training questions "
            f"is set aside for each ({folder})"
        )
        source = Dataset(folder)
    for split in dict.fromkeys((data.train, data.dev, data.test)):
        for note in unmatched_notes(load_questions(source.split_path(split))) if split in source.splits else ():
            say(f"warning: {split}: {note}")
    if data.train in (data.dev, data.test):
        say(f"warning: {data.train} is trained on and measured by, too; name other splits in data.dev and data.test")


def missing_splits(dataset: Dataset, data: DataSettings) -> list[str]:
    """The splits to measure by that have no questions and are set aside from the training questions.

    Raises `DataError` if there are too few training questions for that, and `SettingError` for a missing split that the
    recipe names.
    """

    def has_questions(split: str) -> bool:
        if split not in dataset.splits:
            return False
        with dataset.split_path(split).open(encoding="utf-8") as lines:
            return any(line.strip() for line in lines)

    names = {"dev": data.dev, "test": data.test}
    missing = [name for name in dict.fromkeys(names.values()) if not has_questions(name)]
    for setting, name in names.items():
        if name in missing and name not in dataset.splits and name != setting:
            raise SettingError(f"{dataset.lacks(name)} (data.{setting})")
    if not missing:
        return []
    count = len(load_questions(dataset.split_path(data.train))) if data.train in dataset.splits else 0
    if count <= len(missing):
        raise DataError(
            f"{dataset.folder} has {counted(count, 'training question')} and none in its split "
            f"{' and '.join(missing)}; training needs all of them: make more questions (coseek data synthesize DIR "
            "--out OUT --generator MODEL_OR_URL), add documents, or name splits that it has with data.dev=SPLIT "
            "data.test=SPLIT"
        )
    return missing


def _set_aside(dataset: Dataset, train: str, missing: Iterable[str], out: Path) -> None:
    """Write the data set `out`: the same, with a share of the training questions as each missing split."""
    questions = load_questions(dataset.split_path(train))
    share = max(1, round(SET_ASIDE * len(questions)))
    splits: dict[str, list[Question]] = {}
    for name in missing:
        splits[name] = draw(questions, min(share, len(questions) - 1), 0)
        set_aside_ids = {question.id for question in splits[name]}
        questions = [question for question in questions if question.id not in set_aside_ids]

    def fill(folder: Path) -> None:
        link_files(dataset.folder, folder)  # a corpus may be large
        for name, split_questions in {train: questions, **splits}.items():
            save_questions(folder / f"questions.{name}.jsonl", split_questions)

    atomic_folder(out, fill)


def make_questions(
    name: str, out: Path, split: str, settings: SynthesisGroup, say: Callable[[str], None], *, needed: bool = True
) -> Path:
    """The data set with questions to train on: the given one if it has the split, else `out`, which is made.

    If its passages yield no questions: the given one, or a `DataError` if questions are `needed`.
    """
    folder = Path(name)
    if out.exists():
        return out
    if split in Dataset(folder).splits:
        return folder
    try:
        report = question_synthesis().synthesize(folder, out, settings)
    except DataError as error:
        if needed:
            raise
        say(f"{error}. Without questions, the passages' own headings and sentences are searched")
        return folder
    say(f"{folder} has no questions to train on; made from its passages: {report} ({out})")
    if report.warning:
        say(f"warning: {report.warning}")
    return out


def own_questions(name: str, used: Path, train: str) -> dict[str, list[Question]]:
    """Name → people's questions, to measure by: those of the given data set, if others were made in `used`."""
    dataset = Dataset(Path(name))
    if dataset.folder == used or train in dataset.splits:
        return {}
    return {f"own-{split}": dataset.questions(split) for split in dataset.splits}


def check_selection(recipe: AgentRecipe, dataset: Dataset) -> None:
    """Raise `DataError` or `SettingError` for a filter that no question passes."""
    for name, settings in select_settings(recipe).items():
        candidates(dataset.questions(recipe.data.train), settings, name)
    recipe.table.select.apply(dataset.questions(recipe.data.test), "table.select")


@dataclass(frozen=True)
class QuestionSet:
    """The questions and the retriever of one column of the table."""

    name: str
    questions: tuple[Question, ...]
    retriever: Retriever


def question_sets(
    recipe: AgentRecipe, folders: Mapping[str, Path], retrievers: Mapping[str, Retriever]
) -> list[QuestionSet]:
    """The columns of the table. `folders` and `retrievers` are those of the sets `data` and, if any, `unseen`."""
    data, table, dataset = recipe.data, recipe.table, Dataset(folders["data"])
    columns = {"dev": dataset.questions(data.dev)} if table.dev else {}
    columns["test"] = table.select.apply(dataset.questions(data.test), "table.select")
    if data.unseen is not None:
        columns["unseen"] = Dataset(folders["unseen"]).questions(data.test)
    if data.folder is not None:
        columns |= own_questions(data.folder, folders["data"], data.train)
    table_sets: list[QuestionSet] = []
    for name, questions in columns.items():
        questions_drawn = draw(questions, table.questions, table.seed, table.per_set)
        table_sets.append(QuestionSet(name, tuple(questions_drawn), retrievers.get(name, retrievers["data"])))
    return table_sets
