"""Opening: every retriever by what a user types. An index folder, a URL, or a YAML file that puts parts together.

A module of `coseek.retrieval.retrievers` that needs no index offers two names:

    SETTINGS                          its settings class
    open(settings, opening)           a retriever; `opening` opens what it stands on

    retriever: rerank                 # a part's name or the path of its `.py` file, then its settings
    over: indexes/bm25                # an index, a URL, another YAML file, or such lines again; paths as seen from here
    depth: 50
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from coseek.core import registry
from coseek.core.errors import MissingExtra, SettingError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.plugins import PluginSpec, is_plugin_path
from coseek.core.settings import Settings, make_settings
from coseek.data.passage import Corpus
from coseek.models.text_model import TextModel
from coseek.retrieval.index import PACKAGE, IndexCard, open_index
from coseek.retrieval.retriever import Retriever

OFFERS: PluginSpec = {"SETTINGS": Settings, "open": None}
"""What a retriever of one's own must have."""

Source: TypeAlias = str | Path | Mapping[str, object]
"""What stands for a retriever in settings: a path, a URL, or `{retriever: NAME, …}`."""


class RetrieverModule(Protocol):
    """What a module of `coseek.retrieval.retrievers` that needs no index offers."""

    SETTINGS: type[Settings]

    def open(self, settings: Settings, opening: "OpenContext") -> Retriever: ...


@dataclass(frozen=True)
class OpenContext:
    """Where a retriever is opened: which folder paths are seen from, and what is at hand."""

    folder: Path = Path()
    """Relative paths in settings are seen from here."""
    corpus: Corpus | None = None
    """Saves reading the corpus of an index again."""
    model: Callable[[str], TextModel] | None = None
    """Opens a language model by name; `models.local_text.open_text_model` when not set."""

    def path(self, name: str) -> Path:
        return self.folder / Path(name).expanduser()

    def open(self, source: Source) -> Retriever:
        """Open an index folder, a URL, a YAML file or a mapping."""
        if isinstance(source, Mapping):
            return self._part(source, "the retriever")
        if not isinstance(source, str | Path):
            raise SettingError(f"a retriever is an index folder, a URL, a YAML file or a mapping, not {source!r}")
        if str(source).startswith(("http://", "https://")):
            return self._part({"retriever": "remote", "url": str(source)}, str(source))
        path = self.path(str(source))
        if path.suffix in (".yaml", ".yml"):
            return replace(self, folder=path.parent)._part(read_yaml(path, "retriever file"), str(path))
        return open_index(path, self.corpus)

    def writer(self, name: str) -> TextModel:
        """A language model by its name; a folder's path is seen from here."""
        from coseek.models.local_text import open_text_model  # here: it brings torch, and few retrievers need it

        return (self.model or open_text_model)(str(self.path(name)) if self.path(name).is_dir() else name)

    def _part(self, tree: Mapping[str, object], where: str) -> Retriever:
        part, settings = self._settings(tree, where)
        return part.open(settings, self)

    def _settings(self, tree: Mapping[str, object], where: str) -> tuple[RetrieverModule, Settings]:
        """The part that these lines name, and its settings; nothing is opened."""
        name = tree.get("retriever")
        if not isinstance(name, str):
            raise SettingError(f"{where} needs a line `retriever: NAME`")
        module = registry.find_plugin(
            "retriever", PACKAGE, str(self.path(name)) if is_plugin_path(name) else name, OFFERS
        )
        if not hasattr(module, "open"):
            raise SettingError(f"{name!r} searches an index; make one with `coseek index`, and name its folder")
        part = cast(RetrieverModule, module)
        own = {key: value for key, value in tree.items() if key != "retriever"}
        return part, make_settings(part.SETTINGS, own, where)

    def check(self, tree: Mapping[str, object], where: str) -> None:
        """Refuse lines whose name or settings are wrong. What they stand on is not looked at."""
        self._settings(tree, where)


def plugin_files(source: Source, folder: Path = Path()) -> list[str]:
    """The `.py` files that a retriever is put together with, those of the YAML files that it names among them."""
    if isinstance(source, Mapping):
        each = [one for value in source.values() for one in (value if isinstance(value, list) else [value])]
        named = [one for one in each if isinstance(one, str | Mapping)]
        return [found for one in named for found in plugin_files(one, folder)]
    path = folder / Path(source).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return plugin_files(read_yaml(path, "retriever file"), path.parent)
    return [str(path)] if is_plugin_path(str(path)) else []


def open_retriever(
    source: Source, corpus: Corpus | None = None, model: Callable[[str], TextModel] | None = None
) -> Retriever:
    """Open what a user named: an index folder, a URL, a YAML file, or a mapping of settings."""
    return OpenContext(corpus=corpus, model=model).open(source)


def require_library(library: str, for_what: str, extra: str) -> None:
    """Refuse with the line that installs it when an optional library is missing."""
    import importlib.util

    if importlib.util.find_spec(library) is None:
        raise MissingExtra(library, for_what, extra)


def check_source(name: str) -> None:
    """Refuse what is no retriever, before anything is opened."""
    path = Path(name).expanduser()
    if name.startswith(("http://", "https://")):
        return
    if path.suffix in (".yaml", ".yml"):
        OpenContext(path.parent).check(read_yaml(path, "retriever file"), str(path))
    else:
        IndexCard.read(path)


def describe_retriever(name: str, retriever: Retriever) -> JsonObject:
    """What a run remembers of its retriever: the card of an index, else its name and identity."""
    if Path(name).is_dir():
        return IndexCard.read(Path(name)).to_json()
    return {"retriever": retriever.name, "identity": retriever.identity}
