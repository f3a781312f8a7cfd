"""Laptop worlds: a generated encyclopedia with questions and an oracle, in memory or as a data-set folder."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import atomic_folder, check_replaceable, read_json, read_yaml, write_json
from coseek.core.fingerprint import digest_of
from coseek.core.lock import lock_beside
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import KNOWN, Question, plan_of, save_questions, twins, withhold
from coseek.lab.world.drawn_lexicon import lexicon_of
from coseek.lab.world.facts import make_facts
from coseek.lab.world.oracle import Oracle
from coseek.lab.world.passages import write_passages
from coseek.lab.world.questions import make_known, make_questions, offer
from coseek.lab.world.settings import SPLITS, WorldSettings

_FILES = re.compile(rf"world\.json|corpus\.jsonl|questions\.({'|'.join((*SPLITS, KNOWN))})\.jsonl")
SCHEMA = 1
"""Version of `world.json`."""

__all__ = ["World", "WorldSettings", "check_world_folder", "make_world"]


@dataclass(frozen=True)
class World:
    """The passages, questions and oracle of a laptop world."""

    settings: WorldSettings
    corpus: Corpus
    questions: Mapping[str, list[Question]]
    """By split, without empty splits."""
    oracle: Oracle

    @property
    def digest(self) -> str:
        """SHA-256 over all passages and questions."""
        questions = (question for split in (*SPLITS, KNOWN) for question in self.questions.get(split, ()))
        rows = (json.dumps(question.to_json(), sort_keys=True) for question in questions)
        return digest_of(self.corpus.digest, *rows)

    def save(self, folder: Path) -> None:
        """Write `corpus.jsonl`, `questions.<split>.jsonl` and `world.json`, all or nothing, in place of a world."""
        with lock_beside(folder, again=False):
            check_world_folder(folder)
            atomic_folder(folder, self._write)

    def _write(self, folder: Path) -> None:
        self.corpus.save(folder / "corpus.jsonl")
        for split, questions in self.questions.items():
            save_questions(folder / f"questions.{split}.jsonl", questions)
        settings = dump_settings(self.settings)
        for name in ("known", "lists", "choices"):
            if not settings[name]:
                del settings[name]  # so that the file of a world without it is that of earlier versions
        write_json(folder / "world.json", {"schema": SCHEMA, "settings": settings, "oracle": self.oracle.to_json()})

    @classmethod
    def load(cls, folder: Path) -> "World":
        """Read a world back as it was written."""
        dataset = Dataset(folder)
        path = folder / "world.json"
        row = read_json(path)
        settings = row.get("settings") if isinstance(row, dict) and row.get("schema") == SCHEMA else None
        if not isinstance(settings, dict):
            raise DataError(f"{path} is not a world of schema {SCHEMA}; write it again with `coseek world make`")
        splits = (split for split in (*SPLITS, KNOWN) if split in dataset.splits)
        questions: dict[str, list[Question]] = {split: dataset.questions(split) for split in splits}
        return cls(make_settings(WorldSettings, settings), dataset.corpus, questions, Oracle.load(folder))


def check_world_folder(folder: Path) -> None:
    """Raise `DataError` for a folder with other files than a world's, since the whole folder would be replaced."""
    check_replaceable(folder, _FILES.fullmatch, "a laptop world")
    if folder.is_dir() and any(folder.iterdir()) and not _is_world(folder / "world.json"):
        raise DataError(
            f"{folder} holds a data set that is not a laptop world (it has no world.json of one); choose a new folder"
        )


def _is_world(path: Path) -> bool:
    """Whether a file is the `world.json` of a world, of any schema."""
    try:
        row = read_json(path)
    except DataError:
        return False
    return isinstance(row, dict) and row.keys() >= {"schema", "settings", "oracle"}


def make_world(settings: WorldSettings) -> World:
    """Make a world. Its parts have separate seeds, so that other questions leave the passages unchanged.

    Raises `DataError` if the settings are a reference world's and the result differs from it.
    """
    lexicon = lexicon_of(settings)
    facts = make_facts(settings, lexicon, _stage_rng(settings, "facts"))
    written_world = write_passages(facts, settings, lexicon, _stage_rng(settings, "passages"))
    questions = make_questions(written_world, settings, lexicon, _stage_rng(settings, "questions"))
    if settings.choices:
        questions = offer(written_world, questions, settings.choices, _stage_rng(settings, "choices"))
    if settings.known:
        questions = make_known(written_world, settings, lexicon, _stage_rng(settings, "known"), questions)
    withheld_ids = _withheld_ids(questions, settings)
    passages = [*written_world.passages.values(), *(passage for passage, _ in written_world.stale)]
    # Ties in a ranking keep corpus order, so the order must carry no information.
    _stage_rng(settings, "order").shuffle(passages)
    oracle = Oracle(written_world.facts, {passage.id: entity_id for passage, entity_id in written_world.stale})
    corpus = Corpus((passage for passage in passages if passage.id not in withheld_ids), "the laptop world")
    world = World(settings, corpus, twins(questions, withheld_ids) if withheld_ids else questions, oracle)
    for name, reference in reference_worlds().items():
        if reference.settings == settings and reference.sha256 != world.digest:
            raise DataError(
                f"this version of coseek makes another {name} (sha256 {world.digest}) than the published one "
                f"({reference.sha256}); use the version of your other figures, or other settings"
            )
    return world


def _withheld_ids(questions: Mapping[str, list[Question]], settings: WorldSettings) -> set[str]:
    """Ids of the passages that the corpus lacks. Those of marriages stay: the spouse's passage states them, too."""
    if not settings.unanswerable:
        return set()
    all_questions = [question for of_split in questions.values() for question in of_split]
    needed_ids = {step.gold_id for question in all_questions for step in plan_of(question) if step.relation == "spouse"}
    return withhold(all_questions, settings.unanswerable, _stage_rng(settings, "withheld"), needed_ids)


def _stage_rng(settings: WorldSettings, name: str) -> random.Random:
    return random.Random(f"{settings.seed} {name}")


# Reference worlds have a name and a digest, so that results of different versions are comparable.

FOLDER = Path(__file__).parent / "worlds"


class ReferenceWorld(Settings):
    """A file of `worlds`."""

    about: str
    """One line of description."""
    sha256: str
    """`World.digest` of what the settings make."""
    settings: WorldSettings
    """The settings that differ from the defaults."""


@cache
def reference_worlds() -> dict[str, ReferenceWorld]:
    """All reference worlds by name."""
    files = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: make_settings(ReferenceWorld, read_yaml(path, "reference world"), path) for path in files}


def reference_world(name: str) -> ReferenceWorld:
    """A reference world by its name. Raises `UnknownName`, which suggests the closest one."""
    if name not in reference_worlds():
        raise UnknownName("reference world", name, reference_worlds())
    return reference_worlds()[name]


def chosen_world(settings: Mapping[str, object], name: str | None) -> WorldSettings:
    """The settings given, or those of the reference world `name`, which takes no others."""
    typed = make_settings(WorldSettings, settings)
    if name is None:
        return typed
    fixed = reference_world(name).settings
    if typed != WorldSettings():
        raise SettingError(f"the settings of {name} are fixed; leave out yours, or the name")
    return fixed
