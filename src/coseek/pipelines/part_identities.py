"""Identities: digests of what a recipe names by path, so that nothing is replaced between a start and its resumption.

Not read: the sources of an import (the data set that is made of them is what counts) and a data set's corpus (its index
holds the corpus' digest and is refused over another). Nothing can be said of a model behind a URL.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml

from coseek.agents.protocol import tool_files
from coseek.core.errors import RetrieverError
from coseek.core.files import Json
from coseek.core.fingerprint import TOKENIZER, fingerprint
from coseek.core.settings import dump_settings
from coseek.data.identities import Identities, digest, questions_digest
from coseek.data.question import load_questions
from coseek.labels.label_folder import LabelFolder
from coseek.pipelines.agent_recipe import AgentRecipe, RecipePath, paths_of
from coseek.pipelines.together_recipe import TogetherRecipe
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.encoder.recipe import RetrieverRecipe

NOT_READ = ("data.imported.sources", "data.folder", "data.index")


def agent_identities(recipe: AgentRecipe, index: Retriever | None) -> Identities:
    """Setting → digest. `index` is what `data.index` names, opened."""
    found = {**_named(recipe), **_files(dump_settings(recipe)), **_tools(recipe)}
    if index is not None:
        with suppress(RetrieverError):  # a server that does not answer now: its searches will be faults
            found["data.index"] = index.identity
    return found


def retriever_identities(recipe: RetrieverRecipe) -> Identities:
    """Setting → digest."""
    found = {f"labels {name}": _sha256(LabelFolder(Path(name)).sets_path) for name in recipe.labels}
    if recipe.encoder is not None:
        found["encoder"] = fingerprint(encoder_folder(recipe.encoder))
    if recipe.held_out.corpus is not None:
        path = Path(recipe.held_out.corpus)
        found["held_out.corpus"] = _sha256(path / "corpus.jsonl" if path.is_dir() else path)
    return found


def together_identities(recipe: TogetherRecipe) -> Identities:
    """Setting → digest, of what the rounds share. The trainings inside record what their own recipes name."""
    found = {f"agent.{name}": identity for name, identity in _named(recipe.agent).items()}
    for setting, name in (("labels.scorer", recipe.labels.scorer), ("labels.likelihood", recipe.labels.likelihood)):
        if name is not None and (path := Path(name).expanduser()).exists():
            found[setting] = content_of(path)
    if recipe.start.encoder is not None:
        found["start.encoder"] = fingerprint(encoder_folder(recipe.start.encoder))
    return found


def policy_identities(policy: Path, tokenizer: Path, temperature: float, precision: str) -> dict[str, str]:
    """What the turns of a policy depend on, by the folders of its weights and its tokenizer: `Agent.identities`."""
    sampling = f"temperature {temperature:g}, precision {precision}"
    return {"agent": fingerprint(policy), "tokenizer": fingerprint(tokenizer, TOKENIZER), "sampling": sampling}


def content_of(path: Path) -> str:
    """A digest of a model folder, or of a YAML file with the folders that it names."""
    if path.is_dir():
        return fingerprint(path)
    with suppress(yaml.YAMLError, UnicodeDecodeError):
        named = [Path(text).expanduser() for text in _texts(yaml.safe_load(path.read_text(encoding="utf-8")))]
        return digest("".join([_sha256(path), *(fingerprint(folder) for folder in named if folder.is_dir())]))
    return _sha256(path)


def _named(recipe: AgentRecipe) -> dict[str, str]:
    """What a recipe names by path, but for the index, which is opened once and not here."""
    left = [named for named in paths_of(recipe) if named.setting not in NOT_READ]
    return {named.setting: _identity(named) for named in left}


def _identity(named: RecipePath) -> str:
    if named.holds == "data":
        return questions_digest(load_questions(named.path))
    if named.holds == "index":
        return open_retriever(named.path).identity
    return content_of(named.path)


def _files(tree: Json) -> dict[str, str]:
    """The YAML files that settings name (protocols, prompt templates, prompts), each with the digest of its bytes."""
    named = {text: Path(text).expanduser() for text in _texts(tree) if text.endswith((".yaml", ".yml"))}
    return {text: _sha256(path) for text, path in named.items() if path.is_file()}


def _tools(recipe: AgentRecipe) -> dict[str, str]:
    """The `.py` files of the tools of the protocols that a recipe names, each with the digest of its bytes."""
    protocols = (recipe.protocol, *(recipe.warm_start.also if recipe.warm_start else ()))
    return {str(path): _sha256(path) for name in protocols for path in tool_files(name) if path.is_file()}


def _texts(tree: Json) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
