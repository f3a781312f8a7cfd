"""Index: a retriever on disk. A folder with `index.json` (what it is, of which corpus) and the retriever's own files.

A module of `coseek.retrieval.retrievers` offers three names, and its file's name is the retriever's name:

    SETTINGS                          its settings class
    build(corpus, settings, folder)   writes its files
    load(folder, corpus, settings)    a retriever over them

and may offer three more:

    resume(corpus, settings, folder, report)   instead of `build`: goes on with what a killed build left in `folder`
    settle(settings)                  the settings with their defaults filled in, as they are stored; refuses misfits
    SEARCH_TIME                       names of the settings that an index may be opened with, other than it was made
"""

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from coseek.core import registry
from coseek.core.errors import DataError, IndexMismatch, SettingError
from coseek.core.files import JsonObject, as_path, atomic_folder, read_json, recover_folder, write_json
from coseek.core.lock import lock_beside
from coseek.core.plugins import is_plugin_path
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.data.corpus_file import CorpusFile
from coseek.data.passage import Corpus
from coseek.hardware.speed import resolve_here
from coseek.retrieval.resumable_build import INDEX_CARD, Report, build_resumably, silent
from coseek.retrieval.retriever import Retriever

PACKAGE = "coseek.retrieval.retrievers"
SCHEMA = 2
"""Version of `index.json` and of the files beside it."""
_CARD = INDEX_CARD


class IndexModule(Protocol):
    """What a module of `coseek.retrieval.retrievers` offers."""

    SETTINGS: type[Settings]

    def build(self, corpus: Corpus, settings: Settings, folder: Path) -> None: ...
    def load(self, folder: Path, corpus: Corpus, settings: Settings) -> Retriever: ...


class _Resumable(Protocol):
    def resume(self, corpus: Corpus, settings: Settings, folder: Path, report: Report) -> None: ...


class _Settles(Protocol):
    def settle(self, settings: Settings) -> Settings: ...


@dataclass(frozen=True, slots=True)
class IndexCard:
    """What `index.json` says."""

    retriever: str
    settings: JsonObject
    digest: str
    """`Corpus.digest` of the corpus that was indexed."""
    passages: int
    corpus_path: str | None
    """Where the corpus file is, seen from the index folder; `None` for a corpus that came from no file."""
    coseek: str
    """Version of coseek that wrote it."""

    def to_json(self) -> JsonObject:
        return {
            "schema": SCHEMA,
            "retriever": self.retriever,
            "settings": self.settings,
            "corpus": {"digest": self.digest, "passages": self.passages, "path": self.corpus_path},
            "coseek": self.coseek,
        }

    @classmethod
    def read(cls, folder: Path) -> "IndexCard":
        """Read the card of an index folder; anything else is refused with a sentence."""
        recover_folder(folder)
        if not folder.is_dir():
            raise DataError(f"there is no index {folder}; make one with `coseek index`")
        if not (folder / _CARD).is_file():
            raise DataError(f"{folder} is not an index (it has no {_CARD}); make one with `coseek index`")
        row = read_json(folder / _CARD)
        try:
            return cls._from_json(cast(JsonObject, row))
        except (KeyError, TypeError, AttributeError):
            raise DataError(f"{folder / _CARD} is not the card of an index; make it anew with `coseek index`") from None

    @classmethod
    def _from_json(cls, row: JsonObject) -> "IndexCard":
        if row["schema"] != SCHEMA:
            raise DataError(f"an index of schema {row['schema']!r}; this coseek reads schema {SCHEMA}, so make it anew")
        corpus = cast(JsonObject, row["corpus"])
        path = corpus["path"]
        return cls(
            retriever=str(row["retriever"]),
            settings=cast(JsonObject, row["settings"]),
            digest=str(corpus["digest"]),
            passages=cast(int, corpus["passages"]),
            corpus_path=None if path is None else str(path),
            coseek=str(row["coseek"]),
        )


def retriever_names() -> list[str]:
    """The retrievers that an index can be made for."""
    return [
        name
        for name in registry.plugin_names(PACKAGE)
        if hasattr(registry.find_plugin("retriever", PACKAGE, name), "load")
    ]


def check_retriever(retriever: str, settings: Mapping[str, object]) -> None:
    """Refuse settings that an index of this retriever could not be made with. Reads and writes nothing."""
    _settings(_part(retriever), settings)


def build_index(
    source: Path | str | Corpus,
    retriever: str,
    out: Path | str,
    settings: Settings | Mapping[str, object] | None = None,
    report: Report = silent,
) -> Retriever:
    """Make an index in folder `out` and open it.

    `source` is a data-set folder, a corpus file, or a corpus (which must then be handed to `open_index`, too).
    The folder appears whole or not at all; an older index under that name is replaced at the end. A build that takes
    long tells `report` how far it is, and goes on where an earlier one with the same settings was stopped.
    """
    source = source if isinstance(source, Corpus) else as_path(source, "a data-set folder or corpus file")
    out = as_path(out, "an index folder")
    part = _part(retriever)
    checked = _settings(part, settings)
    if hasattr(part, "settle"):
        checked = cast(_Settles, part).settle(checked)
    if out.exists() and not (out.is_dir() and ((out / _CARD).is_file() or not any(out.iterdir()))):
        raise DataError(f"{out} exists and is not an index; choose another folder for the index")
    with lock_beside(out, again=False):  # two builds of one index would mix their rows
        path = None if isinstance(source, Corpus) else _corpus_file(source)
        corpus = source if isinstance(source, Corpus) else _read(_corpus_file(source))
        card = IndexCard(
            retriever=retriever,
            settings=dump_settings(checked),
            digest=corpus.digest,
            passages=len(corpus),
            corpus_path=None if path is None else os.path.relpath(path.resolve(), out.resolve()),
            coseek=_version(),
        )
        _write(part, corpus, checked, card, out, report)
    return part.load(out, corpus, checked)


def _write(part: IndexModule, corpus: Corpus, settings: Settings, card: IndexCard, out: Path, report: Report) -> None:
    def fill(folder: Path) -> None:
        if hasattr(part, "resume"):
            cast(_Resumable, part).resume(corpus, settings, folder, report)
        else:
            part.build(corpus, settings, folder)
            write_json(folder / _CARD, card.to_json())
        if isinstance(corpus, CorpusFile):
            corpus.keep(folder)

    if hasattr(part, "resume"):
        build_resumably(out, card.to_json(), fill)
    else:
        atomic_folder(out, fill)


def open_index(
    folder: Path | str, corpus: Corpus | None = None, overrides: Mapping[str, object] | None = None
) -> Retriever:
    """Open an index over the corpus that it was made from; `corpus` saves reading it again.

    `overrides` are settings that matter only when searching (`SEARCH_TIME` of the retriever); others are refused.
    """
    folder = as_path(folder, "an index folder")
    card = IndexCard.read(folder)
    part = _part(card.retriever)
    settings = _overridden(part, card, overrides or {})
    corpus = corpus or _corpus_of(card, folder)
    if corpus.digest != card.digest:
        raise IndexMismatch(
            f"{folder} indexes another corpus ({card.passages} passages, digest {card.digest[:12]}) than the one "
            f"at hand ({len(corpus)} passages, digest {corpus.digest[:12]}); make it anew with `coseek index`"
        )
    return part.load(folder, corpus, settings)


def _overridden(part: IndexModule, card: IndexCard, overrides: Mapping[str, object]) -> Settings:
    """The settings of an index with some of them changed for searching."""
    settings = make_settings(part.SETTINGS, {**card.settings, **overrides})  # an unknown name is refused in here
    free: frozenset[str] = getattr(part, "SEARCH_TIME", frozenset())
    for name in overrides:
        if name not in free:
            choice = f"what may be chosen when opening it: {', '.join(sorted(free))}" if free else "nothing may be"
            raise SettingError(f"{name!r} is fixed when an index of {card.retriever!r} is made; {choice}")
    device = getattr(settings, "device", "auto")
    return resolve_here(settings, device=None if device == "auto" else device)


def _corpus_of(card: IndexCard, folder: Path) -> Corpus:
    if card.corpus_path is None:
        raise DataError(f"{folder} was made from a corpus in memory; hand that corpus to open_index")
    path = Path(os.path.normpath(folder.resolve() / card.corpus_path))
    if not path.is_file():
        raise DataError(f"{folder} indexes a corpus that is no longer at {path}; put it back, or make the index anew")
    return Corpus.load(path) if path.suffix == ".gz" else CorpusFile.open(path, folder, card.digest)


def _read(path: Path) -> Corpus:
    """The corpus of a file: left on disk, unless it is packed."""
    return Corpus.load(path) if path.suffix == ".gz" else CorpusFile.scan(path)


def _corpus_file(source: Path) -> Path:
    if not source.is_dir():
        return source  # a missing file is refused where it is read
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if (source / name).is_file():
            return source / name
    raise DataError(f"{source} holds no corpus.jsonl; give a data-set folder or a corpus file")


def _part(name: str) -> IndexModule:
    if is_plugin_path(name):  # an index says itself what it is of, and what data names is never run
        raise SettingError(f"{name} is opened, not built: put `retriever: {name}` into a YAML file and name that one")
    module = registry.find_plugin("retriever", PACKAGE, name)
    if not hasattr(module, "load"):
        raise SettingError(f"{name!r} needs no index; put `retriever: {name}` into a YAML file, and name that file")
    return cast(IndexModule, module)


def _settings(part: IndexModule, given: Settings | Mapping[str, object] | None) -> Settings:
    if isinstance(given, Settings):
        return given
    return make_settings(part.SETTINGS, given or {})


def _version() -> str:
    try:
        return importlib.metadata.version("coseek")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"
