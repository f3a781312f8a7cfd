"""Factory: opens a retriever from an index folder, a URL, a YAML file, or settings: a mapping, or text in braces.

A module of `coseek.retrieval.retrievers` that needs no index defines two names:

    SETTINGS                          its settings class
    open(settings, opening)           returns a retriever; `opening` opens the retrievers and models that it uses

    retriever: rerank                 # a retriever's name or the path of its `.py` file, then its settings
    over: indexes/bm25                # an index, a URL, another YAML file, or a mapping; relative to this file
    depth: 50
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from coseek.core import plugins
from coseek.core.connections import is_url
from coseek.core.errors import CoseekError, MissingExtra, RetrieverError, SettingError
from coseek.core.files import JsonObject, read_yaml, real_path
from coseek.core.fingerprint import digest_of
from coseek.core.plugins import PluginSpec, called, check_takes, identify, is_function, is_plugin_path, offer, running
from coseek.core.settings import Settings, apply_overrides, make_settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.models.model_folder import shipped_models
from coseek.retrieval.index import PACKAGE, IndexCard, open_index
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import load_views

if TYPE_CHECKING:
    from coseek.models.text_model import TextModel, TextModelSettings

# Function retriever: a function of the user, or an object with `search`, as a retriever.

Found: TypeAlias = Hit | Passage | str
SearchFunction: TypeAlias = Callable[[str, int], Sequence[Found]]
"""(query, k) → at most k passages, best first: hits, passages, or texts."""


class FunctionRetriever:
    """Asks a function once for each query. What it raises is a failed search, which ends the trajectory as a fault."""

    corpus = None
    reads = ContextFields()

    def __init__(self, function: SearchFunction) -> None:
        check_takes("retriever", function, "query", "k")
        self.name = called(function)
        self._function = function
        self._digest = identify(function)[0]

    @property
    def identity(self) -> str:
        return digest_of("python", self.name, self._digest)

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).text

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        return [self._hits(self.seen(query), k) for query in queries]

    def _hits(self, query: str, k: int) -> list[Hit]:
        try:
            found = list(self._function(query, k))[:k]
        except CoseekError:
            raise
        except Exception as error:
            raise RetrieverError(f"{self.name}: {type(error).__name__}: {error}") from error
        return [self._hit(one, float(k - rank)) for rank, one in enumerate(found)]

    def _hit(self, found: object, score: float) -> Hit:
        match found:
            case Hit():
                return found
            case Passage():
                return Hit(found, score)
            case str():
                return Hit(Passage(digest_of(found)[:16], "", found), score)
        raise SettingError(f"the retriever {self.name} returned {found!r}; let it return passages, hits or texts")


def as_retriever(given: Retriever | SearchFunction) -> Retriever:
    """A retriever as it is, or one that asks a function. Raises `SettingError` for anything else."""
    if isinstance(given, str | Path) or not (callable(getattr(given, "search", None)) or callable(given)):
        raise SettingError(
            f"a retriever is a path, a URL, a mapping, an object with `search` or a function of (query, k), not "
            f"{given!r}"
        )
    if callable(getattr(given, "search", None)):
        return cast(Retriever, given)
    return FunctionRetriever(cast(SearchFunction, given))


def retriever_name(given: str | Path | Retriever | SearchFunction) -> str:
    """A retriever as settings name it: a path or URL, or a function or object, which becomes a part."""
    if isinstance(given, str | Path):
        return str(given)
    opened = as_retriever(given)

    def open_given(settings: Settings, opening: object) -> Retriever:
        return opened

    known = "" if isinstance(opened, FunctionRetriever) else opened.identity
    return offer("retriever", given, {"SETTINGS": Settings, "open": open_given}, known)


CONTRACT: PluginSpec = {"SETTINGS": Settings, "open": None}
"""The names that a user's own retriever module must define."""

Source: TypeAlias = str | Path | Mapping[str, object]
"""A retriever as settings name it: a path, a URL, or `{retriever: NAME, …}`."""


class RetrieverModule(Protocol):
    """The interface of a retriever module that needs no index."""

    SETTINGS: type[Settings]

    def open(self, settings: Settings, opening: "OpenContext") -> Retriever: ...


@dataclass(frozen=True)
class OpenContext:
    """The context in which settings are opened: the folder of relative paths, a corpus, a model loader."""

    folder: Path = Path()
    """The folder that relative paths in settings start from."""
    corpus: Corpus | None = None
    """The corpus of an index, if it has been read already."""
    model: "Callable[[str], TextModel] | None" = None
    """Opens a language model by name; `models.text_model.open_text_model` if not set."""
    above: tuple[Path, ...] = ()
    """The YAML files that are being opened, outermost first."""

    def path(self, name: str) -> Path:
        return self.folder / Path(name).expanduser()

    def open(self, source: Source) -> Retriever:
        """Open an index folder, a URL, a YAML file, or a mapping, also as text in braces."""
        if isinstance(source, Mapping):
            return self._part(source, "the retriever")
        if typed := settings_in(str(source)):
            return self._part(typed, "the retriever")
        if not isinstance(source, str | Path):
            raise SettingError(f"a retriever is an index folder, a URL, a YAML file or a mapping, not {source!r}")
        if is_function(str(source)):
            return self._part({"retriever": str(source)}, str(source))
        if is_url(str(source)):
            return self._part({"retriever": "remote", "url": str(source)}, str(source))
        path = self.path(str(source))
        if path.suffix in (".yaml", ".yml"):
            inside = replace(self, folder=path.parent, above=_deeper(path, self.above))
            return inside._part(read_yaml(path, "retriever file"), str(path))
        return open_index(path, self.corpus)

    def writer(self, name: str, local: "TextModelSettings") -> "TextModel":
        """Open a language model by name, a shipped one or a folder with the settings `local`. Its path is relative to
        `folder`."""
        path = self.path(name)
        name = str(path.absolute()) if path.is_dir() and name not in shipped_models() else name
        if self.model is not None:
            return self.model(name)
        from coseek.models.text_model import open_text_model  # few retrievers write

        return open_text_model(name, local)

    def _part(self, tree: Mapping[str, object], where: str) -> Retriever:
        module, settings = self.check(tree, where)
        path = self._file(str(tree["retriever"]))
        with running("retriever", path):
            opened = module.open(settings, self)
        lacking = [name for name in _INTERFACE if not _has(opened, name)]
        if lacking:
            raise SettingError(
                f"the retriever that {path} opens has no {', '.join(map(repr, lacking))}; a retriever has "
                f"{', '.join(_INTERFACE)}, where `corpus` may be None"
            )
        return opened

    def check(self, tree: Mapping[str, object], where: str) -> tuple[RetrieverModule, Settings]:
        """The module and the settings that a mapping names. Raises `SettingError` for a wrong name or setting. Opens
        nothing, and does not check that paths exist."""
        name = tree.get("retriever")
        if not isinstance(name, str):
            raise SettingError(f"{where} needs a setting `retriever: NAME`")
        module = plugins.find_plugin("retriever", PACKAGE, self._file(name), CONTRACT)
        if not hasattr(module, "open"):
            raise SettingError(f"{name!r} searches an index; make one with `coseek index`, and name its folder")
        found = cast(RetrieverModule, module)
        given = load_views({k: v for k, v in tree.items() if k != "retriever"}, self.folder)
        return found, make_settings(found.SETTINGS, given, where)

    def _file(self, name: str) -> str:
        """A retriever's name, or the path of its file seen from `folder`."""
        return str(self.path(name)) if is_plugin_path(name) and not is_function(name) else name


_INTERFACE = ("name", "corpus", "identity", "seen", "search")


def _has(part: object, name: str) -> bool:
    """Whether an object has an attribute. A property is not computed, which may read a whole index."""
    return inspect.getattr_static(part, name, None) is not None or hasattr(part, name)


def _deeper(path: Path, above: tuple[Path, ...]) -> tuple[Path, ...]:
    """The YAML files that are being read, with one more. Raises `SettingError` for one that names itself."""
    if (here := real_path(path)) in above:
        names = " → ".join(one.name for one in (*above[above.index(here) :], here))
        raise SettingError(f"the retriever file {path} is composed of itself ({names}); name another part in it")
    return *above, here


def plugin_files(source: Source, folder: Path = Path()) -> list[str]:
    """The `.py` files that a retriever is composed of, those named in nested YAML files included."""
    return [str(path) for path in _named(source, folder) if path.suffix == ".py"]


def _named(source: Source, folder: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """Every text in settings as the path that it may be, those in nested YAML files included."""
    if isinstance(source, Mapping):
        each = [one for value in source.values() for one in (value if isinstance(value, list) else [value])]
        named = [one for one in each if isinstance(one, str | Mapping)]
        return [found for one in named for found in _named(one, folder, above)]
    path = folder / Path(source).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _named(read_yaml(path, "retriever file"), path.parent, _deeper(path, above))
    return [path]


def open_retriever(
    source: Source, corpus: Corpus | None = None, model: "Callable[[str], TextModel] | None" = None
) -> Retriever:
    """Open an index folder, a URL, a YAML file, or a mapping of settings."""
    return OpenContext(corpus=corpus, model=model).open(source)


def require_library(library: str, for_what: str, extra: str) -> None:
    """Raise `MissingExtra`, which names the pip command, unless an optional library is installed."""
    import importlib.util

    if importlib.util.find_spec(library) is None:
        raise MissingExtra(library, for_what, extra)


def settings_in(source: str) -> JsonObject | None:
    """The settings in a text in braces, `{retriever: NAME, …}`; `None` for the name of a folder, file or server."""
    if not source.startswith("{"):
        return None
    return cast(JsonObject, apply_overrides({}, [f"retriever={source}"])["retriever"])


def check_source(name: str) -> None:
    """Raise `UserError` unless `name` names a retriever. Opens nothing."""
    path = Path(name).expanduser()
    if is_url(name):
        return
    if typed := settings_in(name):
        OpenContext().check(typed, "the retriever")
    elif path.suffix in (".yaml", ".yml"):
        OpenContext(path.parent).check(read_yaml(path, "retriever file"), str(path))
    else:
        IndexCard.read(path)


def describe_retriever(name: str, retriever: Retriever) -> JsonObject:
    """The description of a retriever in a run's record: the card of an index, else its name and identity."""
    if settings_in(name) is None and Path(name).is_dir():
        return IndexCard.read(Path(name)).to_json()
    return {"retriever": retriever.name, "identity": retriever.identity}
