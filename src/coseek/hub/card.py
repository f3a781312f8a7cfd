"""Card: the README.md of a model folder or a data set, in the form of the Hugging Face Hub.

YAML front matter (licence, library, base model), then sections. Names and texts from recipes, data and models are
inert: dumped as YAML, or escaped so that Markdown shows them as they are. Needs no torch.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

import yaml
from pydantic import AfterValidator

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, atomic_write, read_yaml
from coseek.core.strict_yaml import InvalidYaml, parse_yaml
from coseek.measure.table import Table

FILE = "README.md"
PULLED = ".pulled.yaml"
"""Names the repository that a folder was pulled from; hidden, hence never pushed."""
UNKNOWN = "unknown"
ModelKind: TypeAlias = Literal["policy", "generator", "simulator", "encoder"]

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_SHIPPED_ELSEWHERE = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
"""Name in recipes → repository, for encoders that come with another Python package."""
_ACTIVE = re.compile(r"[\\`*<&|~$@]|://|(?<=\])\(|(?<=\w)\.(?=[^\W\d_]{2})|(?<![^\W_])_|_(?![^\W_])", re.IGNORECASE)
"""What Markdown, HTML, formulas, links and mentions begin with."""
_TICKS = re.compile(r"`++")
_LOGIN = re.compile(r"://[^/@\s]*+@")
"""User and password in an address."""
_LINE_START = re.compile(r"^(?:[-+=>#]|\d+[.)])")
_INVISIBLE = re.compile("[\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Marks of writing direction, line separators and blanks without width."""


def check_license(name: str) -> str:
    """Return a licence identifier; `ValueError` for anything else."""
    if not _LICENSE.fullmatch(name):
        raise ValueError("an identifier is needed, such as apache-2.0, mit, cc-by-4.0, other or unknown")
    return name


License: TypeAlias = Annotated[str, AfterValidator(check_license)]
"""A licence identifier as the Hugging Face Hub lists them."""


def inert(text: str) -> str:
    """One line that Markdown shows as this text, without control characters: a table cell, or a part of a line."""
    plain = " ".join(_visible(text).split())
    return _ACTIVE.sub(lambda found: "".join(f"&#{ord(one)};" for one in found[0]), plain)


def _visible(text: str) -> str:
    """Text with blanks for control characters but newlines, and for marks that are not seen."""
    plain = _INVISIBLE.sub(" ", text)
    return "".join(" " if unicodedata.category(one) == "Cc" and one != "\n" else one for one in plain)


def paragraph(text: str) -> str:
    """The same as a paragraph: no heading, list or quotation."""
    return _LINE_START.sub(lambda found: f"&#{ord(found[0][0])};{found[0][1:]}", inert(text))


def fenced(text: str, language: str = "") -> str:
    """A code block that the text cannot end."""
    ticks = max((len(found) for found in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}{language}\n{_visible(text).rstrip()}\n{fence}"


def shown_table(table: Table) -> str:
    """A table and its notes as Markdown."""
    cells = [tuple(map(inert, row)) for row in (table.columns, *table.rows)]
    return Table(cells[0], tuple(cells[1:]), tuple(map(inert, table.notes))).markdown().rstrip()


def fact_table(facts: Mapping[str, str]) -> str:
    """Facts as a table of two columns, without the empty ones."""
    return shown_table(Table(("what", "value"), tuple((name, value) for name, value in facts.items() if value)))


def shared(value: Json) -> Json:
    """A tree of settings for others: absolute paths cut to their last two parts, no user or password in addresses."""
    if isinstance(value, dict):
        return {shared_text(name): shared(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shared(one) for one in value]
    return shared_text(value) if isinstance(value, str) else value


def shared_text(text: str) -> str:
    """The same for one text; a name before the path, as in `labels /a/b/c`, stays."""
    text = _LOGIN.sub("://…@", text)
    name, blank, path = text.partition(" /") if not text.startswith(("/", "~")) else ("", "", text)
    if blank:
        return f"{name} {shared_text('/' + path)}"
    parts = Path(text).parts
    return "…/" + "/".join(parts[-2:]) if text.startswith(("/", "~")) and len(parts) > 2 else text


def document(front: JsonObject, *sections: str) -> str:
    """Front matter and sections, without the empty ones."""
    head = _yaml({name: value for name, value in front.items() if value})
    return "\n\n".join([f"---\n{head}---", *(one for one in sections if one)]) + "\n"


def _yaml(tree: Json) -> str:
    """YAML lines; with escapes where a character would not be seen."""
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    if _INVISIBLE.search(text):
        text = yaml.safe_dump(tree, sort_keys=False)
    return text


def front_of(text: str, where: Path) -> tuple[JsonObject, str]:
    """The front matter of a card and the text behind it. Raises `DataError` for broken YAML."""
    lines = text.splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if line.rstrip() == "---"][:2]
    if len(ends) < 2 or ends[0] != 0:
        return {}, text
    block = "".join(lines[1 : ends[1]])
    try:
        front = parse_yaml(block)
    except InvalidYaml:
        front = None
    if not isinstance(front, dict | None) or (front is None and block.strip()):
        raise DataError(f"{where}: the lines between --- and --- are no `name: value` lines; mend or delete them")
    return cast(JsonObject, front or {}), "".join(lines[ends[1] + 1 :])


def read_card(folder: Path) -> tuple[JsonObject, str] | None:
    """Front matter and text of a folder's card; `None` without one."""
    path = folder / FILE
    if not path.is_file():
        return None
    return front_of(path.read_text(encoding="utf-8", errors="replace"), path)


def base_model_of(name: str, folder: Path) -> str | None:
    """The repository that a model was started from, as far as files tell: never guessed from a folder's name."""
    if name in _SHIPPED_ELSEWHERE:
        return _SHIPPED_ELSEWHERE[name]
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
    return base if isinstance(base, str) and front.get("tags") and "coseek" in cast(list[Json], front["tags"]) else None


_OPENED: dict[ModelKind, str] = {
    "policy": """
import coseek

agent = coseek.open_agent("FOLDER")  # with its own protocol and prompt
retriever = coseek.open_retriever("INDEX")  # an index folder, a URL or a YAML file
print(coseek.rollout(agent, "A question?", retriever)[0].answer)
""",
    "generator": """
from coseek.graders.factory import open_generator
from coseek.graders.generator import GeneratorSettings

generator = open_generator(GeneratorSettings(model="FOLDER"))  # `--answer-with FOLDER` of `coseek score`
""",
    "simulator": """
import coseek

retriever = coseek.open_retriever({"retriever": "simulated", "model": "FOLDER"})
""",
    "encoder": """
import coseek

retriever = coseek.build_index("DATA", "dense", "INDEX", {"encoder": "FOLDER"})
hits = retriever.search(["a query"], 3)[0]
""",
}
_LANGUAGE_MODEL = """
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
"""
_ENCODER = """
import yaml
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
card = yaml.safe_load(open("FOLDER/coseek.yaml", encoding="utf-8"))
queries = model.encode(["a query"], prompt=card["query_prompt"], normalize_embeddings=card["normalise"])
passages = model.encode(["a passage"], prompt=card["passage_prompt"], normalize_embeddings=card["normalise"])
"""
_LOADING = (
    "FOLDER is this folder; `coseek pull OWNER/NAME FOLDER` fetches it. DATA is a data set, INDEX an index of one "
    "(`coseek index`)."
)


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What is known of a model folder. Every text may hold anything."""

    kind: ModelKind
    title: str
    about: str
    """What it is, in a sentence or two."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Name → value: data, seed, versions; empty values are left out."""
    command: str = ""
    """The command that makes it again."""
    recipe: JsonObject | None = None
    """The settings in the `recipe.yaml` of that command."""
    figures: str = ""
    """Measurements, as Markdown (`shown_table`)."""
    limits: str = ""
    license: str = UNKNOWN
    base_model: str | None = None

    def text(self) -> str:
        """The card as a document."""
        encoder = self.kind == "encoder"
        front: JsonObject = {
            "license": self.license,
            "library_name": "sentence-transformers" if encoder else "transformers",
            "pipeline_tag": "sentence-similarity" if encoder else "text-generation",
            "base_model": self.base_model,
            "tags": ["coseek", "search-agent" if self.kind == "policy" else self.kind],
        }
        recipe = "" if self.recipe is None else _yaml(shared(self.recipe))
        return document(
            front,
            f"# {inert(self.title)}",
            paragraph(self.about),
            "## Training",
            fact_table(self.facts) if any(self.facts.values()) else "",
            fenced(shared_text(self.command), "sh") if self.command else "",
            f"`recipe.yaml` holds, paths shortened:\n\n{fenced(recipe, 'yaml')}" if recipe else "",
            "## Figures",
            self.figures or "None: it was not measured, or the training has not ended.",
            "## Use",
            _LOADING,
            fenced(_OPENED[self.kind].strip(), "python"),
            fenced((_ENCODER if encoder else _LANGUAGE_MODEL).strip(), "python"),
            "## Limits",
            paragraph(self.limits) or "Unknown: the folder does not say how it was trained or measured.",
        )

    def write(self, folder: Path) -> None:
        """Write the card into a folder, in place of an older one."""
        with atomic_write(folder / FILE) as file:
            file.write(self.text())


def setting_words(settings: JsonObject) -> Sequence[str]:
    """`name=value` words for a command line, one for each top-level setting."""
    return [f"{name}={json.dumps(shared(value), ensure_ascii=False)}" for name, value in settings.items()]
