"""Index: a retriever on disk, as a folder with `index.json` (its card) and the retriever's own files.

A module of `coseek.retrieval.retrievers` that builds an index defines three names. Its file's name is the retriever's
name.

    SETTINGS                          its settings class
    build(corpus, settings, folder)   writes its files
    load(folder, corpus, settings)    returns a retriever

It may define four more:

    resume(corpus, settings, folder, report, old)   replaces `build`: continues what a killed build left in `folder`;
                                                    an update passes the `old` index, whose parts can be copied
    resolve(settings)                 returns the settings with defaults filled in, as stored; refuses invalid ones
    adapt(settings, corpus)           returns the settings with the values that depend on the corpus, as stored
    SEARCH_TIME                       names of settings that may be overridden when an index is opened
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coseek import __version__
from coseek.core import plugins
from coseek.core.errors import DataError, IndexMismatch, InUse, SettingError
from coseek.core.files import (
    JsonObject,
    as_path,
    atomic_folder,
    check_replaceable,
    in_training,
    read_json_object,
    recover_folder,
    write_json,
)
from coseek.core.lock import lock_beside
from coseek.core.plugins import is_plugin_path
from coseek.core.record import PlainObject, Record, Schema
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.data.corpus_file import DIGESTS, STAMP, CorpusFile, Digests, as_digests, first_rows, read_array
from coseek.data.passage import Corpus
from coseek.hardware.placement import resolve_here
from coseek.retrieval.index_files import (
    CHECKSUMS,
    INDEX_CARD,
    Report,
    build_resumably,
    check_files,
    read_checksums,
    silent,
    write_checksums,
)
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import load_views

PACKAGE = "coseek.retrieval.retrievers"
_ENCODING = frozenset({"devices", "cluster"})
"""Where an update encodes new passages, even if the search of its index does not use them."""


class IndexModule(Protocol):
    """The interface of a retriever module that builds an index."""

    SETTINGS: type[Settings]

    def build(self, corpus: Corpus, settings: Settings, folder: Path) -> None: ...
    def load(self, folder: Path, corpus: Corpus, settings: Settings) -> Retriever: ...


@runtime_checkable
class _Resumable(Protocol):
    def resume(
        self, corpus: Corpus, settings: Settings, folder: Path, report: Report, old: "OldIndex | None"
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class IndexedCorpus(Record):
    """The corpus of an index."""

    digest: str
    """`Corpus.digest`."""
    passages: int
    path: str | None
    """The path of the corpus file relative to the index folder; `None` for a corpus in memory."""


@dataclass(frozen=True, slots=True)
class IndexCard(Record):
    """The contents of `index.json`."""

    SCHEMA = Schema(4, "an index")

    retriever: str
    settings: PlainObject
    corpus: IndexedCorpus
    coseek: str
    """The version that made the index."""

    @classmethod
    def of(cls, retriever: str, settings: JsonObject, corpus: Corpus, path: Path | None, out: Path) -> "IndexCard":
        """The card of an index in the folder `out` over the corpus of the file `path`."""
        relative = None if path is None else os.path.relpath(path.resolve(), out.resolve())
        return cls(retriever, settings, IndexedCorpus(corpus.digest, len(corpus), relative), __version__)

    @classmethod
    def read(cls, folder: Path) -> "IndexCard":
        """Read the card of an index folder. Raises `DataError` if there is none that this version can read."""
        # Not `Path.is_dir`, which raises where a name is too long to exist.
        if os.path.isdir(folder.with_name(f".{folder.name}.old")):
            # Left by a crash, or by another process that is replacing the index just now and will finish it.
            with suppress(InUse), lock_beside(folder, again=False):
                recover_folder(folder)
        if not os.path.isdir(folder):
            raise DataError(f"there is no index {folder}; make one with `coseek index`")
        if not (folder / INDEX_CARD).is_file() and (folder / "corpus.jsonl").is_file():
            raise DataError(
                f"{folder} is not an index but a data set; make one: coseek index {folder} --out {folder}-bm25"
            )
        if not (folder / INDEX_CARD).is_file():
            line = "coseek index"
            if (folder / "modules.json").is_file():
                line += f" DATA --retriever dense --encoder {folder} --out INDEX"
            hint = in_training(folder, "retriever", "hybrid.yaml", "data.index")
            raise DataError(f"{folder} is not an index (it has no {INDEX_CARD}){hint or f'; make one with `{line}`'}")
        try:
            return cls.from_json(read_json_object(folder / INDEX_CARD))
        except (DataError, KeyError) as error:
            raise DataError(
                f"{folder} has no {INDEX_CARD} that this coseek reads ({error}); rebuild it with `coseek index`"
            ) from None


def retriever_names() -> list[str]:
    """The names of the retrievers that build an index."""
    return [
        name
        for name in plugins.plugin_names(PACKAGE)
        if hasattr(plugins.find_plugin("retriever", PACKAGE, name), "load")
    ]


def check_retriever(retriever: str, settings: Mapping[str, object]) -> None:
    """Raise `UserError` for settings that an index of this retriever cannot be built with. Reads and writes nothing."""
    _validated(index_module(retriever), settings)


def build_index(
    source: Path | str | Corpus,
    retriever: str,
    out: Path | str,
    settings: Settings | Mapping[str, object] | None = None,
    report: Report = silent,
) -> Retriever:
    """Build an index in folder `out` and open it.

    `source` is a data-set folder, a corpus file, or a corpus (which must then be passed to `open_index` as well). The
    folder appears complete or not at all; an index of the same retriever is replaced at the end. A resumable build
    calls `report` with its progress and continues an earlier build with the same settings.
    """
    out = as_path(out, "an index folder")
    module = index_module(retriever)
    checked = _validated(module, settings)
    if resolve := getattr(module, "resolve", None):
        checked = cast(Settings, resolve(checked))
    if out.exists() and not (out.is_dir() and ((out / INDEX_CARD).is_file() or not any(out.iterdir()))):
        raise DataError(f"{out} exists and is not an index; choose another folder for the index")
    check_own_files(out)
    try:
        old_kind = IndexCard.read(out).retriever
    except DataError:  # there is none, or a damaged one
        old_kind = retriever
    if old_kind != retriever:
        raise DataError(f"{out} is an index of {old_kind}, not {retriever}; choose another folder, or delete it first")
    with lock_beside(out, again=False):  # two concurrent builds would mix their rows
        corpus, path = _read_source(source)
        if adapt := getattr(module, "adapt", None):
            checked = cast(Settings, adapt(checked, corpus))
        _write_index(out, IndexCard.of(retriever, dump_settings(checked), corpus, path, out), corpus, checked, report)
    return module.load(out, corpus, checked)


def check_own_files(out: Path) -> None:
    """Refuse an index folder with foreign files, which would be lost when the index is replaced."""
    try:
        own_names = {CHECKSUMS, STAMP, *read_checksums(out)}
    except DataError:  # not an index, or a damaged one, whose files are unknown
        return
    check_replaceable(out, lambda name: name in own_names or name.startswith("."), "its index")


def _write_index(
    out: Path, card: IndexCard, corpus: Corpus, settings: Settings, report: Report, old: "OldIndex | None" = None
) -> None:
    """Write an index with what an older one has, resumably if its retriever can. The caller holds the lock."""
    module = index_module(card.retriever)

    def fill(folder: Path) -> None:
        if isinstance(module, _Resumable):
            module.resume(corpus, settings, folder, report, old)
        else:
            module.build(corpus, settings, folder)
            write_json(folder / INDEX_CARD, card.to_json())
        if isinstance(corpus, CorpusFile):
            corpus.keep(folder)
        else:
            np.save(folder / DIGESTS, as_digests(corpus.digests, 4))
        write_checksums(folder)

    if isinstance(module, _Resumable):
        build_resumably(out, card.to_json(), fill)
    else:
        atomic_folder(out, fill)


def open_index(
    folder: Path | str, corpus: Corpus | None = None, overrides: Mapping[str, object] | None = None
) -> Retriever:
    """Open an index over the corpus it was built from. A given `corpus` saves reading it again. `overrides` are
    settings listed in the retriever's `SEARCH_TIME`; others are a `SettingError`. Another corpus is an
    `IndexMismatch`, a damaged file a `DataError`."""
    folder = as_path(folder, "an index folder")
    card = IndexCard.read(folder)
    check_files(folder)
    module = index_module(card.retriever)
    settings = stored_settings(module, card, load_views(overrides or {}))
    corpus = corpus_of(folder, card) if corpus is None else corpus
    if corpus.digest != card.corpus.digest:
        raise IndexMismatch(
            f"{folder} indexes another corpus ({card.corpus.passages} passages, digest {card.corpus.digest[:12]}) than "
            f"the one at hand ({len(corpus)} passages, digest {corpus.digest[:12]}); rebuild it with `coseek index`"
        )
    return module.load(folder, corpus, settings)


@dataclass(frozen=True, slots=True)
class VerifiedIndex:
    """The result of `verify_index`."""

    files: int
    bytes: int
    corpus: Path | None
    """The corpus file, which is kept; `None` for a corpus in memory."""


def verify_index(folder: Path | str, report: Report = silent) -> VerifiedIndex:
    """Read every byte of an index and of its corpus. Raises `DataError` for a damaged file, `IndexMismatch` for another
    corpus."""
    folder = as_path(folder, "an index folder")
    card = IndexCard.read(folder)
    size = check_files(folder, report)
    path = None if card.corpus.path is None else _corpus_file(folder, card.corpus.path)
    if path is not None and read_corpus(path).digest != card.corpus.digest:
        raise IndexMismatch(f"{path} has changed since {folder} was made; use `coseek index --update`, or rebuild it")
    return VerifiedIndex(len(read_checksums(folder)), size, path)


def _corpus_file(folder: Path, relative: str) -> Path:
    """The path of the corpus of an index."""
    path = Path(os.path.normpath(folder.resolve() / relative))
    if not path.is_file():
        raise DataError(f"{folder} indexes a corpus that is no longer at {path}; put it back, or rebuild the index")
    return path


def corpus_of(folder: Path, card: IndexCard) -> Corpus:
    """Open the corpus file of an index, whose digest is not compared."""
    if card.corpus.path is None:
        raise DataError(f"{folder} was made from a corpus in memory; pass that corpus to open_index")
    path = _corpus_file(folder, card.corpus.path)
    return Corpus.load(path) if path.suffix == ".gz" else CorpusFile.open(path, folder, card.corpus.digest)


def stored_settings(
    module: IndexModule, card: IndexCard, overrides: Mapping[str, object], also: frozenset[str] = frozenset()
) -> Settings:
    """The settings of an index, with overrides: those of `SEARCH_TIME`, and those that are `also` allowed."""
    # A card is data: settings that are excluded from it, such as whether code may run, are not read from it.
    excluded_names = {name for name, field in module.SETTINGS.model_fields.items() if field.exclude}
    stored_values = {name: value for name, value in card.settings.items() if name not in excluded_names}
    settings = make_settings(module.SETTINGS, {**stored_values, **overrides})  # raises for an unknown name
    search_time_names: frozenset[str] = getattr(module, "SEARCH_TIME", frozenset())
    for name, value in overrides.items():
        if name not in search_time_names | also and not (name == "view" and value == card.settings.get("view")):
            choice = f"; to choose when opening it: {', '.join(sorted(search_time_names))}" if search_time_names else ""
            why = "is fixed when an index of {!r} is made; make another"
            why = "has no effect on the search of an index of {!r}; leave it out" if name in _ENCODING else why
            raise SettingError(f"{name!r} {why.format(card.retriever)}{choice}")
    return resolve_here(settings)


def read_corpus(path: Path) -> Corpus:
    """Read a corpus file. It stays on disk unless it is compressed."""
    return Corpus.load(path) if path.suffix == ".gz" else CorpusFile.scan(path)


def _read_source(source: Path | str | Corpus) -> tuple[Corpus, Path | None]:
    """The corpus to index, and its file."""
    if isinstance(source, Corpus):
        return source, None
    path = corpus_path(as_path(source, "a data-set folder or corpus file"))
    return read_corpus(path), path


def corpus_path(source: Path) -> Path:
    """The corpus file of a data-set folder; a file is itself one."""
    if not source.is_dir():
        return source  # a missing file is an error when it is read
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if (source / name).is_file():
            return source / name
    ways = "give a data-set folder or a corpus file, or import your documents first: coseek data import documents FILES"
    hint = in_training(source, "data set", "data")
    raise DataError(f"{source} holds no corpus.jsonl{hint or f'; {ways} --out {source.name}-data'}")


def index_module(name: str) -> IndexModule:
    """The module of a retriever that builds an index."""
    if is_plugin_path(name):  # `index.json` names the retriever, and code named by data is never run
        raise SettingError(f"{name} is opened, not built: put `retriever: {name}` into a YAML file and name that one")
    module = plugins.find_plugin("retriever", PACKAGE, name)
    if not hasattr(module, "load"):
        raise SettingError(f"{name!r} needs no index; put `retriever: {name}` into a YAML file, and name that file")
    return cast(IndexModule, module)


def _validated(module: IndexModule, settings: Settings | Mapping[str, object] | None) -> Settings:
    return settings if isinstance(settings, Settings) else make_settings(module.SETTINGS, load_views(settings or {}))


# Update: an index over a changed corpus, made from the old index as far as possible.
#
# Passages are compared by digests of their ids and contents, so that only new and changed texts are encoded. The
# results are those of a rebuild. The old index stays in place until the new one is complete.

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OldIndex:
    """The index that an update starts from."""

    folder: Path
    rows_N: Rows
    """For every passage of the new corpus, a row of the old one with the same title and text; −1 without one."""


@dataclass(frozen=True, slots=True)
class CorpusChange:
    """How a corpus differs from the one that an index holds, in passages by id."""

    rows_N: Rows
    """See `OldIndex`."""
    added: int
    changed: int
    removed: int

    @classmethod
    def between(cls, old_M4: Digests, new_N4: Digests) -> "CorpusChange":
        """Compare the `digests` of two corpora."""
        same_id_N = first_rows(old_M4[:, :2], new_N4[:, :2])
        differs_N = (old_M4[same_id_N, 2:] != new_N4[:, 2:]).any(axis=1)
        changed_rows = np.flatnonzero((same_id_N < 0) | differs_N)
        rows_N = same_id_N.copy()  # the same id first, so that a repeated text keeps its row
        rows_N[changed_rows] = first_rows(old_M4[:, 2:], new_N4[changed_rows, 2:])
        added_count = int((same_id_N < 0).sum())
        return cls(rows_N, added_count, len(changed_rows) - added_count, len(old_M4) - len(new_N4) + added_count)

    @property
    def kept(self) -> int:
        """Passages with the same id, title and text."""
        return len(self.rows_N) - self.added - self.changed

    def __str__(self) -> str:
        return f"{self.added:,} new, {self.changed:,} changed, {self.removed:,} removed, {self.kept:,} kept"


def update_index(
    source: Path | str | Corpus,
    out: Path | str,
    retriever: str | None = None,
    settings: Mapping[str, object] | None = None,
    report: Report = silent,
) -> CorpusChange:
    """Bring the index in the folder `out` up to date with a corpus.

    `retriever`, where given, must be the index's own; `settings` are those that may be chosen when an index is opened,
    which the new index stores, and `devices` or `cluster`, which encode new passages. The new index replaces the old
    one at the end, in one rename. Raises `DataError` for a damaged index, `IndexMismatch` for one whose encoder has
    changed: both must be rebuilt.
    """
    out = as_path(out, "an index folder")
    card = IndexCard.read(out)
    if retriever not in (None, card.retriever):
        raise SettingError(f"{out} is an index of {card.retriever!r}, not of {retriever!r}; leave out the update")
    module = index_module(card.retriever)
    checked = stored_settings(module, card, load_views(settings or {}), _ENCODING)
    card_settings = card.settings | {name: v for name, v in dump_settings(checked).items() if name in (settings or {})}
    check_own_files(out)
    with lock_beside(out, again=False):
        check_files(out, report)  # in full: the new index copies bytes, and its checksums would hide damage
        corpus, path = _read_source(source)
        old_M4 = cast(Digests, read_array(out / DIGESTS, "i", 4))
        change = CorpusChange.between(old_M4, as_digests(corpus.digests, 4))
        new_card, old = IndexCard.of(card.retriever, card_settings, corpus, path, out), OldIndex(out, change.rows_N)
        _write_index(out, new_card, corpus, checked, report, old)
    return change
