"""Data folder: a user's data set, checked before anything is trained, with questions made from it where it has none."""

from collections.abc import Callable
from pathlib import Path

from coseek.core.errors import DataError, SettingError
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.question import Question
from coseek.pipelines.agent_recipe import DataSettings
from coseek.synthesis.settings import SynthesisSettings
from coseek.synthesis.synthesis import synthesize
from coseek.world.world import make_world


def check_data_folder(name: str, setting: str = "", split: str = "train", usual: str = "train") -> None:
    """Refuse what is no data set, and a split that somebody named and that it lacks. `setting` names the folder."""
    folder, named = Path(name).expanduser(), f", which {setting} names" if setting else ""
    if not folder.exists():
        raise DataError(
            f"there is no folder {folder}{named}; check the path, or make it: "
            f"coseek data import documents FILES --out {folder}"
        )
    if (folder / "index.json").is_file():
        raise DataError(f"{folder}{named} is an index; name the data set that it was made from")
    if not (folder / "corpus.jsonl").is_file():
        made = f"{folder.name or 'my'}-data"
        holds = "is a file" if folder.is_file() else "has no corpus.jsonl" if any(folder.iterdir()) else "is empty"
        raise DataError(
            f"{folder}{named} {holds} and is no data set; import the documents first: coseek data import documents "
            f"{folder} --out {made}, then name {made}"
        )
    dataset = Dataset(folder)
    if split != usual and split not in dataset.splits:
        raise SettingError(dataset.lacks(split))


def make_data(data: DataSettings, folder: Path, say: Callable[[str], None]) -> None:
    """Make `folder`, the data set of an agent's training, unless it is there or the recipe's own holds all."""
    if data.folder is not None and data.synthesis is not None:
        make_questions(data.folder, folder, data.train, data.synthesis, say)
    if data.world is not None and not folder.exists():
        make_world(data.world).save(folder)
    if data.imported is not None and not folder.exists():
        sources = [Path(source).expanduser() for source in data.imported.sources]
        import_data(data.imported.format, sources, folder, shares=data.imported.shares)


def make_questions(
    given: str, out: Path, split: str, settings: SynthesisSettings, say: Callable[[str], None], *, needed: bool = True
) -> Path:
    """The data set with questions to train on: the given one where it has the split, else `out`, which is made.

    Where its passages give no questions, it is the given one again, or a `DataError` if they are `needed`.
    """
    folder = Path(given).expanduser()
    if out.exists():
        return out
    if split in Dataset(folder).splits:
        return folder
    try:
        made = synthesize(folder, out, settings)
    except DataError as error:
        if needed:
            raise
        say(f"{error}. Without questions, the passages' own headings and sentences are searched")
        return folder
    say(f"{folder} has no questions to train on; made from its passages: {made} ({out})")
    return out


def own_questions(given: str, used: Path) -> dict[str, list[Question]]:
    """Name → the questions that the given data set had before others were made (`used`): people's, to measure by."""
    own = Dataset(given)
    return {} if own.folder == used else {f"own-{split}": own.questions(split) for split in own.splits}
