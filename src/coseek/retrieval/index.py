"""Index: a retriever on disk. A folder with `index.json` (what it is, of which corpus) and the retriever's own files.

A module of `coseek.retrieval.retrievers` offers three names, and its file's name is the retriever's name:

    SETTINGS                          its settings class
    build(corpus, settings, folder)   writes its files
    load(folder, corpus, settings)    a retriever over them
"""

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from coseek.data import registry
from coseek.data.errors import DataError, IndexMismatch
from coseek.data.files import JsonObject, atomic_folder, read_json, recover_folder, write_json
from coseek.data.passage import Corpus
from coseek.data.settings import Settings, make_settings, save_settings
from coseek.retrieval.retriever import Retriever

PACKAGE = "coseek.retrieval.retrievers"
SCHEMA = 1
"""Version of `index.json`."""
_CARD = "index.json"


class RetrieverPart(Protocol):
    """What a module of `coseek.retrieval.retrievers` offers."""

    SETTINGS: type[Settings]

    def build(self, corpus: Corpus, settings: Settings, folder: Path) -> None: ...
    def load(self, folder: Path, corpus: Corpus, settings: Settings) -> Retriever: ...


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
    return registry.names(PACKAGE)


def build_index(
    source: Path | Corpus, retriever: str, out: Path, settings: Settings | Mapping[str, object] | None = None
) -> Retriever:
    """Make an index in folder `out` and open it.

    `source` is a data-set folder, a corpus file, or a corpus (which must then be handed to `open_index`, too).
    The folder appears whole or not at all; an older index under that name is replaced at the end.
    """
    part = _part(retriever)
    checked = _settings(part, settings)
    if out.exists() and not (out.is_dir() and ((out / _CARD).is_file() or not any(out.iterdir()))):
        raise DataError(f"{out} exists and is not an index; choose another folder for the index")
    path = None if isinstance(source, Corpus) else _corpus_file(source)
    corpus = source if isinstance(source, Corpus) else Corpus.load(_corpus_file(source))
    card = IndexCard(
        retriever=retriever,
        settings=save_settings(checked),
        digest=corpus.digest,
        passages=len(corpus),
        corpus_path=None if path is None else os.path.relpath(path.resolve(), out.resolve()),
        coseek=_version(),
    )

    def fill(folder: Path) -> None:
        part.build(corpus, checked, folder)
        write_json(folder / _CARD, card.to_json())

    atomic_folder(out, fill)
    return part.load(out, corpus, checked)


def open_index(folder: Path, corpus: Corpus | None = None) -> Retriever:
    """Open an index over the corpus that it was made from; `corpus` saves reading it again."""
    card = IndexCard.read(folder)
    part = _part(card.retriever)
    corpus = corpus or _corpus_of(card, folder)
    if corpus.digest != card.digest:
        raise IndexMismatch(
            f"{folder} indexes another corpus ({card.passages} passages, digest {card.digest[:12]}) than the one "
            f"at hand ({len(corpus)} passages, digest {corpus.digest[:12]}); make it anew with `coseek index`"
        )
    return part.load(folder, corpus, _settings(part, card.settings))


def _corpus_of(card: IndexCard, folder: Path) -> Corpus:
    if card.corpus_path is None:
        raise DataError(f"{folder} was made from a corpus in memory; hand that corpus to open_index")
    path = Path(os.path.normpath(folder.resolve() / card.corpus_path))
    if not path.is_file():
        raise DataError(f"{folder} indexes a corpus that is no longer at {path}; put it back, or make the index anew")
    return Corpus.load(path)


def _corpus_file(source: Path) -> Path:
    if not source.is_dir():
        return source  # a missing file is refused where it is read
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if (source / name).is_file():
            return source / name
    raise DataError(f"{source} holds no corpus.jsonl; give a data-set folder or a corpus file")


def _part(name: str) -> RetrieverPart:
    return cast(RetrieverPart, registry.find("retriever", PACKAGE, name))


def _settings(part: RetrieverPart, given: Settings | Mapping[str, object] | None) -> Settings:
    if isinstance(given, Settings):
        return given
    return make_settings(part.SETTINGS, given or {})


def _version() -> str:
    try:
        return importlib.metadata.version("coseek")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"
