"""Factory: opens a retriever from an index folder, a URL, a YAML file, or settings: a mapping, or text in braces.

A module of `coseek.retrieval.retrievers` that needs no index defines two names:

    SETTINGS                          its settings class
    open(settings, opening)           returns a retriever; `opening` opens the retrievers and models that it uses

    retriever: rerank                 # a retriever's name or the path of its `.py` file, then its settings
    over: indexes/bm25                # an index, a URL, another YAML file, or a mapping; relative to this file
    depth: 50
"""

import importlib.util
import inspect
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from coseek.core import plugins
from coseek.core.connections import is_url
from coseek.core.errors import CoseekError, MissingExtra, RetrieverError, SettingError
from coseek.core.files import JsonObject, read_yaml, real_path
from coseek.core.fingerprint import digest_of
from coseek.core.plugins import (
    PREFIX,
    PluginSpec,
    called,
    check_takes,
    identify,
    is_function,
    is_plugin_path,
    offer,
    running,
)
from coseek.core.settings import Settings, apply_overrides, make_settings
from coseek.core.text import counted
from coseek.data.passage import Corpus, Hit, Passage
from coseek.models.model_folder import shipped_models
from coseek.retrieval.index import PACKAGE, IndexCard, open_index
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries
from coseek.retrieval.retriever import LayeredRetriever, Retriever, fault_of_hits
from coseek.retrieval.views import load_views

if TYPE_CHECKING:
    from coseek.models.text_model import TextModel, TextModelSettings

# Function retriever: a function of the user, or an object with `search`, as a retriever.

SearchFunction: TypeAlias = Callable[[str, int], Sequence[Hit | Passage | str]]
"""(query, k) → at most k passages, best first: hits, passages, or texts."""


class FunctionRetriever:
    """Calls a function once per query. An exception is a failed search, which ends the trajectory as a fault."""

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
        with failed_search(f"{PREFIX}{self.name}"):
            returned: object = self._function(query, k)
            is_single = isinstance(returned, str | Mapping | Passage | Hit)
            results = [returned] if is_single else list(cast("Iterable[object]", returned))[:k]
            return _checked_hits([self._hit(result, float(k - rank)) for rank, result in enumerate(results)], k, None)

    def _hit(self, result: object, score: float) -> Hit:
        match result:
            case Hit():
                return result
            case Passage():
                return Hit(result, score)
            case str():
                return Hit(Passage(digest_of(result)[:16], "", result), score)
        raise SettingError(f"the retriever {self.name} returned {result!r}; let it return passages, hits or texts")


class CheckedRetriever(LayeredRetriever):
    """A user's retriever. Its exceptions, and hits that no reader of rankings can use, are failed searches."""

    keeps_scores = True

    def __init__(self, over: Retriever, file: str) -> None:
        super().__init__(over)
        self._file = file
        self.name = over.name

    @property
    def identity(self) -> str:
        with running("retriever", self._file):
            return str(self.over.identity)

    def seen(self, query: QueryLike) -> str:
        with running("retriever", self._file):
            return self.over.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        with failed_search(self._file):
            results: object = self.over.search(queries, k)
            lists = [*results] if isinstance(results, Iterable) else []
            if len(lists) != len(queries) or not all(isinstance(hits, Iterable) for hits in lists):
                raise RetrieverError(
                    f"{self.name}: the search of {counted(len(queries), 'query', 'queries')} returned "
                    f"{reprlib.repr(results)}; return a list of hits for each query"
                )
            return [_checked_hits([*hits], k, self.corpus) for hits in lists]


@contextmanager
def failed_search(name: str) -> Iterator[None]:
    """Turn an exception of the user's retriever `name` into a `RetrieverError`."""
    try:
        yield
    except CoseekError:
        raise
    except Exception as error:
        raise RetrieverError(plugins.failure("retriever", name, error)) from error


def _checked_hits(hits: Sequence[object], k: int, corpus: Corpus | None) -> list[Hit]:
    """The hits of one query. Raises `RetrieverError` unless they are a ranking of at most `k` passages."""
    ranking: list[Hit] = []
    for rank, hit in enumerate(hits, start=1):
        match hit:
            case Hit(Passage(str(), str(), str()) as passage, score) if isinstance(cast(object, score), Real):
                ranking.append(Hit(passage, float(score)))
            case _:
                raise RetrieverError(f"hit {rank} of the retriever is {reprlib.repr(hit)}; return Hit(passage, number)")
    ids, scores = [hit.passage.id for hit in ranking], [hit.score for hit in ranking]
    if fault := fault_of_hits(ranking):
        raise RetrieverError(fault)
    if len(hits) > k:
        raise RetrieverError(f"the retriever returned {len(hits)} hits, but at most {k} were requested")
    if scores != sorted(scores, reverse=True):
        raise RetrieverError(f"the scores of the retriever are {reprlib.repr(scores)}; return hits by falling score")
    if repeated_ids := [ident for ident, count in Counter(ids).items() if count > 1]:
        raise RetrieverError(f"the retriever returned the passage {repeated_ids[0]!r} twice in one search")
    if corpus is not None and (foreign_ids := [ident for ident in ids if not corpus.has(ident)]):
        raise RetrieverError(f"the retriever returned the passage {foreign_ids[0]!r}, which is not in its corpus")
    return ranking


def as_retriever(given: Retriever | SearchFunction) -> Retriever:
    """The retriever itself, or a retriever that calls the given function. Raises `SettingError` for anything else."""
    if callable(getattr(given, "search", None)):
        name = called(given)
        retriever = _check_complete(cast(Retriever, given), name)
        is_ours = type(given).__module__.partition(".")[0] == __name__.partition(".")[0]
        return retriever if is_ours else CheckedRetriever(retriever, f"{PREFIX}{name}")
    if callable(given):
        return FunctionRetriever(given)
    raise SettingError(
        f"a retriever is a path, a URL, a mapping, an object with `search` or a function of (query, k), not {given!r}"
    )


def retriever_name(given: str | Path | Retriever | SearchFunction) -> str:
    """The name of a retriever in settings: a path or URL, or that of a function or object, which becomes a part."""
    if isinstance(given, str | Path):
        return str(given)
    retriever = as_retriever(given)

    def open_given(settings: Settings, context: object) -> Retriever:
        return retriever

    digest = "" if isinstance(retriever, FunctionRetriever) else retriever.identity
    return offer("retriever", given, {"SETTINGS": Settings, "open": open_given}, digest)


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
    parents: tuple[Path, ...] = ()
    """The YAML files that are being opened, outermost first."""

    def path(self, name: str) -> Path:
        return self.folder / Path(name).expanduser()

    def open(self, source: Source) -> Retriever:
        """Open an index folder, a URL, a YAML file, or a mapping, also as text in braces."""
        if isinstance(source, Mapping):
            return self._open(source, "the retriever")
        if settings := settings_in(str(source)):
            return self._open(settings, "the retriever")
        if not isinstance(source, str | Path):
            raise SettingError(
                f"a retriever is an index folder, a URL, a YAML file or a mapping, not {source!r}; a function "
                "is passed to rollout, ask or a trainer as it is"
            )
        if is_function(str(source)):
            return self._open({"retriever": str(source)}, str(source))
        if is_url(str(source)):
            return self._open({"retriever": "remote", "url": str(source)}, str(source))
        path = self.path(str(source))
        if path.suffix in (".yaml", ".yml"):
            inner_context = replace(self, folder=path.parent, parents=_with_parent(path, self.parents))
            return inner_context._open(read_yaml(path, "retriever file"), str(path))
        return open_index(path, self.corpus)

    def open_model(self, name: str, local: "TextModelSettings") -> "TextModel":
        """Open a language model by name: a shipped one or a folder, with the settings `local`. A path is relative to
        `folder`."""
        path = self.path(name)
        name = str(path.absolute()) if path.is_dir() and name not in shipped_models() else name
        if self.model is not None:
            return self.model(name)
        from coseek.models.text_model import open_text_model  # few retrievers need it

        return open_text_model(name, local)

    def _open(self, tree: Mapping[str, object], where: str) -> Retriever:
        module, settings = self.check(tree, where)
        name = self._plugin_name(str(tree["retriever"]))
        with running("retriever", name):
            retriever = module.open(settings, self)
        _check_complete(retriever, f"that {name} opens")
        return CheckedRetriever(retriever, name) if is_plugin_path(name) and not is_function(name) else retriever

    def check(self, tree: Mapping[str, object], where: str) -> tuple[RetrieverModule, Settings]:
        """The module and the settings that a mapping names. Raises `SettingError` for a wrong name or setting. Opens
        nothing, and does not check that paths exist."""
        name = tree.get("retriever")
        if not isinstance(name, str):
            raise SettingError(f"{where} needs a setting `retriever: NAME`")
        module = plugins.find_plugin("retriever", PACKAGE, self._plugin_name(name), CONTRACT)
        if not hasattr(module, "open"):
            raise SettingError(f"{name!r} searches an index; make one with `coseek index`, and name its folder")
        retriever_module = cast(RetrieverModule, module)
        settings = load_views({key: value for key, value in tree.items() if key != "retriever"}, self.folder)
        return retriever_module, make_settings(retriever_module.SETTINGS, settings, where)

    def _plugin_name(self, name: str) -> str:
        """A retriever's name, or the path of its file relative to `folder`."""
        return str(self.path(name)) if is_plugin_path(name) and not is_function(name) else name


_INTERFACE = ("name", "corpus", "identity", "seen", "search")


def _check_complete(retriever: Retriever, label: str) -> Retriever:
    """The retriever. Raises `SettingError` where it lacks a member."""
    # A property is not computed, since that may read a whole index.
    missing = [
        member
        for member in _INTERFACE
        if inspect.getattr_static(retriever, member, None) is None and not hasattr(retriever, member)
    ]
    if missing:
        raise SettingError(
            f"the retriever {label} has no {', '.join(map(repr, missing))}; a retriever has {', '.join(_INTERFACE)}, "
            "where `corpus` may be None"
        )
    return retriever


def _with_parent(path: Path, parents: tuple[Path, ...]) -> tuple[Path, ...]:
    """Append a YAML file to those that are being read. Raises `SettingError` for a file that names itself."""
    if (file := real_path(path)) in parents:
        names = " → ".join(parent.name for parent in (*parents[parents.index(file) :], file))
        raise SettingError(f"the retriever file {path} is composed of itself ({names}); name another part in it")
    return *parents, file


def plugin_files(source: Source, folder: Path = Path()) -> list[str]:
    """The `.py` files that a retriever is composed of, those named in braces and in nested YAML files included."""
    return [str(path) for path in _possible_paths(source, folder) if path.suffix == ".py"]


def _possible_paths(source: Source, folder: Path, parents: tuple[Path, ...] = ()) -> list[Path]:
    """Every text in settings, read as a path, those in braces and in nested YAML files included."""
    if isinstance(source, str):
        with suppress(SettingError):  # another text, such as a prompt, may begin with a brace, too
            source = settings_in(source) or source
    if isinstance(source, Mapping):
        values = [value for group in source.values() for value in (group if isinstance(group, list) else [group])]
        nested = [value for value in values if isinstance(value, str | Mapping)]
        return [path for value in nested for path in _possible_paths(value, folder, parents)]
    path = folder / Path(source).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _possible_paths(read_yaml(path, "retriever file"), path.parent, _with_parent(path, parents))
    return [path]


def open_retriever(
    source: Source, corpus: Corpus | None = None, model: "Callable[[str], TextModel] | None" = None
) -> Retriever:
    """Open an index folder, a URL, a YAML file, or a mapping of settings."""
    return OpenContext(corpus=corpus, model=model).open(source)


def require_library(library: str, for_what: str, extra: str) -> None:
    """Raise `MissingExtra`, which names the pip command, unless an optional library is installed."""
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
    if settings := settings_in(name):
        OpenContext().check(settings, "the retriever")
    elif path.suffix in (".yaml", ".yml"):
        OpenContext(path.parent).check(read_yaml(path, "retriever file"), str(path))
    else:
        IndexCard.read(path)


def describe_retriever(name: str, retriever: Retriever) -> JsonObject:
    """The description of a retriever in a run's record: the card of an index, else its name and identity."""
    if settings_in(name) is None and Path(name).is_dir():
        return IndexCard.read(Path(name)).to_json()
    return {"retriever": retriever.name, "identity": retriever.identity}
