"""Publication: which files of a folder are for others. Nothing hidden, no state of a training, no keys, no links out.

A model folder's files are chosen by their suffix, a data set's by their name. A folder without a card gets one.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from coseek.agents.agent_card import AgentCard
from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, read_json, read_jsonl, read_text, read_yaml
from coseek.data.dataset import Dataset
from coseek.hub.card import FILE, UNKNOWN, ModelCard, document, fact_table, fenced, front_of, inert, read_card, shared
from coseek.models.model_folder import check_tensors
from coseek.retrieval.vectors.encoder_card import EncoderCard, check_modules

RepoKind: TypeAlias = Literal["model", "dataset"]
Content: TypeAlias = Path | bytes
"""A file on disk, or what is written in its place."""
FolderKind: TypeAlias = Literal["model", "encoder", "data set"]

SOURCE = "source.json"
LINES_READ = 100_000
"""Lines of a file that are read before it is sent, and after it is fetched; a corpus may have millions."""
_MODEL_SUFFIXES = {".json", ".safetensors", ".txt", ".jinja", ".model", ".yaml", ".yml", ".md", ".py"}
_DATA = re.compile(r"corpus\.jsonl|questions\.[\w-]+\.jsonl|world\.json|source\.json|README\.md")
_STATE = re.compile(r"(checkpoint|optimizer|optimiser|scheduler|scaler|rng_state|trainer_state|training_args|\.).*")
"""Names of files and folders with the state of a training, and hidden ones."""
_TEXTS = {".json", ".txt", ".jinja", ".yaml", ".yml", ".md", ".py"}
_MOST_SCANNED = 4_000_000
"""Bytes of a text in which keys are looked for; longer ones are vocabularies."""
_KEY = re.compile(
    rb"\b(?:hf_[A-Za-z0-9]{30,64}|sk-[A-Za-z0-9_-]{24,200}|gh[pousr]_[A-Za-z0-9]{36,64}|AKIA[A-Z0-9]{16})\b"
    rb"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY"
)


@dataclass(frozen=True)
class Publication:
    """What is sent."""

    what: FolderKind
    files: Mapping[str, Content]
    """Path in the repository → content."""
    left_out: tuple[str, ...]
    """Files that stay here."""
    license: str

    @property
    def repo_kind(self) -> RepoKind:
        return repo_kind_of(self.what)


def kind_of(folder: Path) -> FolderKind | None:
    """What a folder holds, by its files."""
    if (folder / "modules.json").is_file():
        return "encoder"
    if (folder / "config.json").is_file():
        return "model"
    held = (folder / "corpus.jsonl").is_file() or any(folder.glob("questions.*.jsonl"))
    return "data set" if held else None


def repo_kind_of(what: FolderKind) -> RepoKind:
    """The kind of repository for what a folder holds."""
    return "dataset" if what == "data set" else "model"


def is_published(name: str, what: RepoKind) -> bool:
    """Whether a file of this path belongs into a repository, and may be written from one."""
    parts = PurePosixPath(name).parts
    plain = all(part not in ("..", ".", "/") and part.isprintable() for part in parts) and "\\" not in name
    if not parts or not plain or len(name) > 300 or any(_STATE.fullmatch(part) for part in parts):
        return False
    if what == "dataset":
        return len(parts) == 1 and _DATA.fullmatch(name) is not None
    return PurePosixPath(name).suffix in _MODEL_SUFFIXES


def publication_of(folder: Path, license: str | None = None) -> Publication:
    """The publication of a policy, an encoder or a data set, read and checked. `license` replaces the card's.

    Raises `DataError` for another folder, a broken one, a link to a file outside of it, and what looks like a key.
    """
    what = _checked_kind(folder)
    files: dict[str, Content] = {}
    left_out: list[str] = []
    kind = repo_kind_of(what)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file():
            if is_published(name, kind):
                raise DataError(f"{path} is no file, but {_odd(path)}; remove it, or put the file in its place")
            continue
        if not is_published(name, kind):
            left_out.append(name)
            continue
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{path} is a link to a file outside of {folder}; put a copy in its place")
        files[name] = path
    if kind == "dataset" and SOURCE in files:
        files[SOURCE] = (json.dumps(shared(read_json(folder / SOURCE)), ensure_ascii=False, indent=2) + "\n").encode()
    card, said = _card_text(folder, what, license)
    files[FILE] = card.encode()
    check_content(folder, kind, [name for name, content in files.items() if isinstance(content, Path)])
    for name, content in files.items():
        _refuse_keys(folder / name, content)
    return Publication(what, dict(sorted(files.items())), tuple(left_out), said)


def check_content(folder: Path, kind: RepoKind, names: Iterable[str]) -> None:
    """Read the published texts of a folder, of a long JSONL file its first `LINES_READ` lines, and the heads of its
    weights. Raises `DataError` for a broken one."""
    for path in (folder / name for name in names):
        if path.suffix == ".json":
            read_json(path, foreign=kind == "model")
        elif path.suffix in (".yaml", ".yml"):
            read_yaml(path, "file")
        elif path.suffix == ".jsonl":
            deque(islice(read_jsonl(path), LINES_READ), maxlen=0)
        elif path.suffix == ".safetensors":
            check_tensors(path)
        elif path.suffix == ".md":
            read_text(path)


def _odd(path: Path) -> str:
    """What something is that is no file."""
    if path.is_symlink():
        return "a link to nothing"
    return "a folder" if path.is_dir() else "a device"


def _checked_kind(folder: Path) -> FolderKind:
    """What a folder holds; raises `DataError` where it is nothing that can be opened again."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; check the path")
    what = kind_of(folder)
    if what is None:
        inside = next((path for path in _folders(folder) if kind_of(path)), None)
        hint = f"did you mean {inside}?" if inside else "name one, such as OUT/policy/trained or OUT/encoder"
        raise DataError(f"{folder} holds no policy, encoder or data set; {hint}")
    if what == "data set":
        return what
    if not any(folder.rglob("*.safetensors")):
        raise DataError(f"{folder} has no weights (*.safetensors); finish the training, or save it as safetensors")
    if what == "encoder":
        EncoderCard.of(folder)
        check_modules(folder)
    else:
        AgentCard.read(folder)
    return what


def _folders(folder: Path) -> Iterator[Path]:
    """Where a training's folder has its results, the last first."""
    for name in ("policy/trained", "policy/warm", "encoder", "base", "generator", "simulator", "data"):
        yield folder / name


def _refuse_keys(path: Path, content: Content) -> None:
    """Raise `DataError` for a text of settings or prose with what looks like a key. Corpora are not looked through."""
    if isinstance(content, Path) and (path.suffix not in _TEXTS or path.stat().st_size > _MOST_SCANNED):
        return
    text = content if isinstance(content, bytes) else content.read_bytes()
    if _KEY.search(text):
        raise DataError(f"{path} holds what looks like an API key; take it out, and make it invalid where it is known")


def _card_text(folder: Path, what: FolderKind, license: str | None) -> tuple[str, str]:
    """The card of the folder, or a new one, and the licence that it names."""
    found = read_card(folder)
    if found is None:
        text = data_card(folder) if what == "data set" else _plain_card(folder, what).text()
        found = front_of(text, folder / FILE)
    front, rest = found
    said = front.get("license")
    front = {"license": license or (said if isinstance(said, str) else UNKNOWN), **_without(front, "license")}
    return document(front, rest.strip()), str(front["license"])


def _without(tree: JsonObject, name: str) -> JsonObject:
    return {key: value for key, value in tree.items() if key != name}


def _plain_card(folder: Path, what: FolderKind) -> ModelCard:
    """The card of a model that no training of ours wrote."""
    about = "A text encoder for dense search." if what == "encoder" else "A language model for search agents."
    return ModelCard(kind="encoder" if what == "encoder" else "policy", title=folder.resolve().name, about=about)


def data_card(folder: Path) -> str:
    """The card of a data set: its files and rows, where it comes from, how it is opened."""
    data = Dataset(folder)
    rows = {"corpus.jsonl": f"{len(data.corpus):,} passages"} if data.corpus_path.is_file() else {}
    rows |= {data.split_path(split).name: f"{len(data.questions(split)):,} questions" for split in data.splits}
    configs: list[Json] = (
        [{"config_name": "corpus", "data_files": "corpus.jsonl"}] if data.corpus_path.is_file() else []
    )
    splits: list[Json] = [{"split": split, "path": data.split_path(split).name} for split in data.splits]
    if splits:
        configs.append({"config_name": "questions", "data_files": splits})
    front: JsonObject = {
        "license": UNKNOWN,
        "task_categories": ["question-answering"],
        "tags": ["coseek", "search-agent"],
        "configs": configs,
    }
    opened = """
import coseek

data = coseek.Dataset("FOLDER")  # of `coseek pull OWNER/NAME FOLDER`
print(len(data.corpus), data.splits)
"""
    theirs = """
from datasets import load_dataset

questions = load_dataset("OWNER/NAME", "questions")
"""
    return document(
        front,
        f"# {inert(folder.resolve().name)}",
        "Questions with gold answers and passages, and the corpus in which they are looked for.",
        fact_table(rows),
        "A passage is `{id, title, text, meta?}`, a question `{id, question, answers, gold_ids?, hops?, meta?}`. Any "
        "one of `answers` is right, and all `gold_ids` support it.",
        "## Source",
        _source(folder),
        "## Use",
        fenced(opened.strip(), "python"),
        fenced(theirs.strip(), "python"),
        "## Limits",
        "The licence of the sources applies; this card does not know it. Nothing was checked beyond the form of the "
        "rows and that gold passages exist.",
    )


def _source(folder: Path) -> str:
    """Where the rows come from, as far as the files tell."""
    world, source = (read_json(path) if (path := folder / name).is_file() else None for name in ("world.json", SOURCE))
    if isinstance(world, dict) and isinstance(settings := world.get("settings"), dict):
        shown = {name: str(value) for name, value in settings.items() if isinstance(value, str | int | float)}
        return "A generated world: every name and fact is invented, and its text is English of templates.\n\n" + (
            fact_table({"command": f"coseek world make OUT --size {settings.get('size')}", **shown})
        )
    if isinstance(source, dict):
        return "Imported by `coseek data import`; `source.json` lists the files with their digests.\n\n" + fact_table(
            {name: str(value) for name, value in source.items() if isinstance(value, str | int)}
        )
    return "Unknown: the folder does not say."
