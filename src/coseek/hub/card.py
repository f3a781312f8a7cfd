"""Card: the README.md of a model folder or a data set, in the format of the Hugging Face Hub.

It has YAML front matter (licence, library, base model) and sections. Texts from recipes, data and models are escaped,
so that Markdown shows them as they are. Needs no torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

import yaml
from pydantic import AfterValidator

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, atomic_write, read_yaml
from coseek.core.settings import MayChange
from coseek.core.strict_yaml import InvalidYaml, parse_yaml
from coseek.data.dataset import Dataset
from coseek.measure.table import Table
from coseek.models.model_folder import PUBLISHED_AS

FILE = "README.md"
PULLED = ".pulled.yaml"
"""Name of the file with the repository that a folder was pulled from. Hidden, hence never pushed."""
SOURCE = "source.json"
UNKNOWN = "unknown"
ModelKind: TypeAlias = Literal["policy", "generator", "simulator", "encoder", "reranker"]
TASKS: Mapping[str, str] = {"encoder": "sentence-similarity", "reranker": "text-ranking"}
"""Kind of a sentence-transformers model → the hub's name of its task."""

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_ACTIVE = re.compile(r"[\\`*<&|~$@]|://|(?<=\])\(|(?<=\w)\.(?=[^\W\d_]{2})|(?<![^\W_])_|_(?![^\W_])")
"""Start of Markdown, HTML, formulas, links and mentions."""
_LINE_START = re.compile(r"^(?:[-+=>#]|\d+[.)])")
_LOGIN = re.compile(r"://[^/@\s]*+@")
"""User and password in an address."""


def check_license(name: str) -> str:
    """Return the licence identifier. Raises `ValueError` for anything else."""
    if not _LICENSE.fullmatch(name):
        raise ValueError("an identifier is needed, such as apache-2.0, mit, cc-by-4.0, other or unknown")
    return name


License: TypeAlias = Annotated[str, AfterValidator(check_license), MayChange()]
"""A licence identifier from the list of the Hugging Face Hub."""


def inert(text: str) -> str:
    """Escape a text to one line that Markdown shows as it is, for a table cell or a part of a line."""
    return _ACTIVE.sub(_escape_match, " ".join(_printable(text).split()))


def paragraph(text: str) -> str:
    """Escape a text to a paragraph, which must not become a heading, list or quotation."""
    return _LINE_START.sub(_escape_match, inert(text))


def _printable(text: str) -> str:
    """Replace invisible characters except newlines by blanks."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def _escape_match(match: re.Match[str]) -> str:
    return "".join(f"&#{ord(sign)};" for sign in match[0])


def fenced(text: str, language: str = "") -> str:
    """A code block that the text cannot end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{_printable(text).rstrip()}\n{fence}"


def shown_table(table: Table) -> str:
    """Format a table and its notes as Markdown."""
    columns, *rows = (tuple(map(inert, row)) for row in (table.columns, *table.rows))
    return Table(columns, tuple(rows), tuple(map(inert, table.notes))).markdown().rstrip()


def fact_table(facts: Mapping[str, str]) -> str:
    """Format facts as a table of two columns. Skips empty values; empty without facts."""
    rows = tuple((name, value) for name, value in facts.items() if value)
    return shown_table(Table(("what", "value"), rows)) if rows else ""


def shared(value: Json) -> Json:
    """Anonymise a tree of settings: absolute paths keep their last two parts, addresses lose user and password."""
    if isinstance(value, dict):
        return {shared_text(name): shared(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shared(item) for item in value]
    return shared_text(value) if isinstance(value, str) else value


def shared_text(text: str) -> str:
    """Anonymise one text. A name before a path stays, as in `labels /a/b/c`."""
    text = _LOGIN.sub("://…@", text)
    if not text.startswith(("/", "~")):
        name, blank, path = text.partition(" /")
        return f"{name} {shared_text('/' + path)}" if blank else text
    parts = Path(text).parts
    return "…/" + "/".join(parts[-2:]) if len(parts) > 2 else text


def setting_words(settings: JsonObject) -> Sequence[str]:
    """Convert settings to `name=value` words for a command line, one per top-level setting."""
    return [f"{name}={json.dumps(shared(value), ensure_ascii=False)}" for name, value in settings.items()]


def document(front: JsonObject, *sections: str) -> str:
    """Join front matter and sections, without empty ones."""
    head = _yaml({name: value for name, value in front.items() if value})
    return "\n\n".join([f"---\n{head}---", *filter(None, sections)]) + "\n"


def _yaml(tree: Json) -> str:
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return text if _printable(text) == text else yaml.safe_dump(tree, sort_keys=False)


def front_of(text: str, where: Path) -> tuple[JsonObject, str]:
    """Split a card into its front matter and the text after it. Raises `DataError` for invalid YAML."""
    match = re.match(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if match is None:
        return {}, text
    try:
        front = parse_yaml(match[1]) if match[1].strip() else {}
    except InvalidYaml:
        front = None
    if not isinstance(front, dict):
        raise DataError(f"{where}: the lines between --- and --- are no `name: value` lines; mend or delete them")
    return cast(JsonObject, front), text[match.end() :]


def read_card(folder: Path) -> tuple[JsonObject, str] | None:
    """Read the front matter and the text of a folder's card; `None` without a card."""
    path = folder / FILE
    return front_of(path.read_text(encoding="utf-8", errors="replace"), path) if path.is_file() else None


def base_model_of(name: str, folder: Path) -> str | None:
    """The repository of the model that a training started from, if files name it; never guessed from a folder's
    name."""
    if name in PUBLISHED_AS:
        return PUBLISHED_AS[name]
    if (folder / PULLED).is_file():
        repo = read_yaml(folder / PULLED, "record").get("repo")
        return repo if isinstance(repo, str) else None
    cached = folder.parent.parent.name.split("--")  # `models--OWNER--NAME` in the hub's own cache
    if folder.parent.name == "snapshots" and len(cached) == 3:
        return f"{cached[1]}/{cached[2]}"
    try:
        front = (read_card(folder) or ({}, ""))[0]
    except DataError:
        return None
    base = front.get("base_model")
    return base if isinstance(base, str) and "coseek" in cast(list[Json], front.get("tags") or []) else None


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The content of a model's card. All texts are untrusted."""

    kind: ModelKind
    title: str
    about: str
    """Description of one or two sentences."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Name → value: data, seed, versions. Empty values are skipped."""
    command: str = ""
    """The command that reproduces the model."""
    recipe: JsonObject | None = None
    """The settings in the `recipe.yaml` of that command."""
    figures: str = ""
    """Measurements, as Markdown (`shown_table`)."""
    limits: str = ""
    license: str = UNKNOWN
    base_model: str | None = None

    def text(self) -> str:
        """Format the card."""
        front: JsonObject = {
            "license": self.license,
            "library_name": "sentence-transformers" if self.kind in TASKS else "transformers",
            "pipeline_tag": TASKS.get(self.kind, "text-generation"),
            "base_model": self.base_model,
            "tags": ["coseek", "search-agent" if self.kind == "policy" else self.kind],
        }
        recipe = "" if self.recipe is None else fenced(_yaml(shared(self.recipe)), "yaml")
        return document(
            front,
            f"# {inert(self.title)}",
            paragraph(self.about),
            "## Training",
            fact_table(self.facts),
            fenced(shared_text(self.command), "sh") if self.command else "",
            f"`recipe.yaml` holds, paths shortened:\n\n{recipe}" if recipe else "",
            "## Figures",
            self.figures or "None: it was not measured, or the training has not ended.",
            "## Use",
            _usage({"maxsim": "late-interaction", "words": "sparse"}.get(self.facts.get("similarity", ""), self.kind)),
            "## Limits",
            paragraph(self.limits) or "Unknown: the folder does not say how it was trained or measured.",
        )

    def write(self, folder: Path) -> None:
        """Write the card into a folder, replacing an older one."""
        with atomic_write(folder / FILE) as file:
            file.write(self.text())


def data_card(folder: Path) -> str:
    """Format the card of a data set: files, numbers of rows, source, usage."""
    data, has_corpus = Dataset(folder), (folder / "corpus.jsonl").is_file()
    rows = {"corpus.jsonl": f"{len(data.corpus):,} passages"} if has_corpus else {}
    rows |= {data.split_path(split).name: f"{len(data.questions(split)):,} questions" for split in data.splits}
    splits: list[Json] = [{"split": split, "path": data.split_path(split).name} for split in data.splits]
    configs: list[Json] = [{"config_name": "corpus", "data_files": "corpus.jsonl"}] if has_corpus else []
    configs += [{"config_name": "questions", "data_files": splits}] if splits else []
    front: JsonObject = {
        "license": UNKNOWN,
        "task_categories": ["question-answering"],
        "tags": ["coseek", "search-agent"],
        "configs": configs,
    }
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
        _usage("data"),
        "## Limits",
        "The licence of the sources applies; this card does not know it. Nothing was checked beyond the form of the "
        "rows and that gold passages exist.",
    )


def _usage(kind: str) -> str:
    return (Path(__file__).parent / "usage" / f"{kind}.md").read_text(encoding="utf-8").strip()


def _source(folder: Path) -> str:
    """Describe where the rows come from, by the files of the folder."""
    if (folder / "world.json").is_file():
        return "A generated world (`world.json`): every name and fact is invented, its text is English of templates."
    if (folder / SOURCE).is_file():
        return f"Imported by `coseek data import`; `{SOURCE}` lists the files with their digests."
    return "Unknown: the folder does not say."
