"""Index update: an index over a changed corpus, made with what the old index holds of it.

Passages are told apart by digests of their ids and contents, so that only new and changed texts are
encoded. The results are those of a rebuild. The old index stays in place until the new one is complete.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, SettingError
from coseek.core.files import as_path
from coseek.core.lock import lock_beside
from coseek.core.settings import Settings
from coseek.data.array_file import read_array
from coseek.data.corpus_file import DIGESTS, CorpusFile, Digests, DigestTable, as_digests, first_rows
from coseek.data.passage import Corpus
from coseek.retrieval.index import (
    IndexCard,
    check_own_files,
    corpus_path,
    fill_anew,
    index_module,
    install,
    read_corpus,
    stored_settings,
)
from coseek.retrieval.index_files import Report, check_files, silent
from coseek.retrieval.views import load_views

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OldIndex:
    """The index that an update starts from."""

    folder: Path
    rows_N: Rows
    """For every passage of the new corpus, a row of the old one with the same title and text; −1 for none."""


@runtime_checkable
class Updatable(Protocol):
    """A retriever module whose indexes can be updated."""

    def update(self, corpus: Corpus, settings: Settings, folder: Path, old: OldIndex, report: Report) -> None: ...


@dataclass(frozen=True, slots=True)
class CorpusChange:
    """How a corpus differs from the one that an index holds, in passages by id."""

    rows_N: Rows
    """See `OldIndex`."""
    added: int
    changed: int
    removed: int

    @classmethod
    def between(cls, old_M4: Digests, new_N4: Digests, known_N: Rows | None = None) -> "CorpusChange":
        """Compare the `digests` of two corpora. `known_N`: old rows of passages that are known to be kept, or −1."""
        same_id_N = np.full(len(new_N4), -1) if known_N is None else known_N.copy()
        left, rest = np.flatnonzero(same_id_N < 0), np.ones(len(old_M4), dtype=bool)
        rest[same_id_N[same_id_N >= 0]] = False
        rows_R = np.append(np.flatnonzero(rest), -1)  # ids are unique: none of `left` is that of a kept passage
        same_id_N[left] = rows_R[DigestTable(old_M4[rest, :2]).rows(new_N4[left, :2])]
        is_other = (old_M4[same_id_N[left], 2:] != new_N4[left, 2:]).any(axis=1)
        changed = left[(same_id_N[left] < 0) | is_other]
        rows_N = same_id_N.copy()  # the same id first: a text that occurs twice then stays in its place
        rows_N[changed] = first_rows(old_M4[:, 2:], new_N4[changed, 2:])
        added = int((same_id_N < 0).sum())
        return cls(rows_N, added, len(changed) - added, len(old_M4) - len(new_N4) + added)

    @property
    def kept(self) -> int:
        """Passages that are as they were."""
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

    `retriever`, where given, must be the index's own; `settings` are those that may be chosen when an index is opened.
    The new index replaces the old one at the end, in one rename. Raises `DataError` for an index of an earlier version,
    `IndexMismatch` for one whose encoder has changed: both must be rebuilt.
    """
    out = as_path(out, "an index folder")
    source = source if isinstance(source, Corpus) else as_path(source, "a data-set folder or corpus file")
    card = IndexCard.read(out)
    if retriever not in (None, card.retriever):
        raise SettingError(f"{out} is an index of {card.retriever!r}, not of {retriever!r}; leave out the update")
    module = index_module(card.retriever)
    checked = stored_settings(module, card, load_views(settings or {}))
    check_own_files(out)
    with lock_beside(out, again=False):
        if not (out / DIGESTS).is_file():
            raise DataError(f"{out} was made by an earlier coseek, without what an update needs; rebuild it once")
        check_files(out, report)  # in full: the new index takes bytes over, and vouches for them
        path = None if isinstance(source, Corpus) else corpus_path(source)
        corpus = source if isinstance(source, Corpus) else read_corpus(path or source, out)
        known_N = corpus.known_N if path is not None and isinstance(corpus, CorpusFile) else None
        old_M4 = cast(Digests, read_array(out / DIGESTS, "i", 4))
        change = CorpusChange.between(old_M4, as_digests(corpus.digests, 4), known_N)

        def fill(folder: Path) -> None:
            if isinstance(module, Updatable):
                module.update(corpus, checked, folder, OldIndex(out, change.rows_N), report)
            else:
                fill_anew(module, corpus, checked, folder, report)

        install(out, IndexCard.of(card.retriever, card.settings, corpus, path, out), corpus, module, fill)
    return change
