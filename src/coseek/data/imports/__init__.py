"""Import public question-answering data into a data-set folder.

A format is a module of this package, named by its file, with `read(sources) -> ImportedData`. A format that searches
folders itself also has `files(sources) -> list[Path]`.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

from coseek.core import plugins
from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject, atomic_folder, check_replaceable, link_file, read_json, write_json
from coseek.core.fingerprint import file_digest
from coseek.core.lock import lock_beside
from coseek.core.plugins import PluginSpec, plugin_name, running
from coseek.core.settings import Settings, make_settings
from coseek.data.corpus_file import CorpusFile
from coseek.data.dataset import check_gold_ids
from coseek.data.imports._sources import ImportedData, SplitAssignment, checked_splits, expand, origin_of, skipped_files
from coseek.data.question import Question, has_text, load_questions, save_questions, unmatched

PACKAGE = "coseek.data.imports"
CONTRACT: PluginSpec = {"read": None}
CORPUS, CARD = "corpus.jsonl", "source.json"
FILES = re.compile(r"corpus\.jsonl|source\.json|questions\.[^/]*\.jsonl")
TEST = "test"
"""The default split."""
_MOST_REASONS = 5
"""Unread files that an error names."""
_SPLIT = re.compile(r"[\w-]+")


class ImportFormat(Protocol):
    """A module of `coseek.data.imports`; `files` and the settings are optional."""

    def read(self, sources: Sequence[Path], *settings: Settings) -> ImportedData: ...

    def files(self, sources: Sequence[Path]) -> list[Path]: ...


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """The counts of an import."""

    folder: Path
    passages: int
    questions: dict[str, int]
    """Questions written, by split."""
    notes: dict[str, int]
    """Counts of the format: own passages, distractors, questions left out …"""
    report: JsonObject
    """The outcome of each file, from formats that report it (`documents`)."""
    named: dict[str, list[str]]
    """Note → the names of the counted items, if the format gives them."""

    @property
    def counts(self) -> JsonObject:
        named: JsonObject = {name: [*names] for name, names in self.named.items()}
        counts: JsonObject = {"passages": self.passages, "questions": {**self.questions}, "notes": {**self.notes}}
        return {**counts, "named": named} if named else counts


def format_names() -> list[str]:
    return plugins.plugin_names(PACKAGE)


def import_data(
    format_name: str,
    sources: Sequence[Path],
    out: Path,
    *,
    split: str | None = None,
    shares: Mapping[str, float] | None = None,
    deal: SplitAssignment | None = None,
    settings: Mapping[str, object] | None = None,
) -> ImportSummary:
    """Read `sources` (files, plain or gzipped, or a folder of them) and write the data-set folder `out`.

    All questions go to `split` (default `test`), or are split by `shares` (name → share, summing to 1), or by a `deal`
    of published data sets. Formats that bring their own splits take none of these. A folder with the same corpus keeps
    its other splits; a folder with anything else is refused. `documents` have no questions and replace an older import
    of documents, whose questions stay if their gold passages do. `questions` have no corpus, so a folder keeps its
    corpus. `settings` are those of the format. Raises `DataError` and `SettingError` without writing anything.
    """
    _check_options(format_name, split, shares, deal)
    reader, files = _open_format(format_name, sources)
    if deal is not None:
        unused = deal.leaves_alone(sources)
        files = [file for file in files if file not in unused]
    with lock_beside(out, again=False):  # before the other splits are read: another import may be adding one
        check_replaceable(out, FILES.fullmatch, "an imported data set")
        reading = _read(format_name, reader, files, settings)
        summaries: list[ImportSummary] = []

        def fill(folder: Path) -> None:
            corpus = _corpus(format_name, reading, files, out, folder / CORPUS)
            report = reading.report
            dealt_splits = {} if report is not None else _splits(format_name, reading, split, shares, deal)
            splits, notes = checked_splits(dealt_splits, reading.notes)
            if report is None and not splits:
                raise _nothing_found("questions", files, format_name)
            documents = _documents_card(out)
            digest = None if corpus is None or (report is not None and documents) else corpus.digest
            merged = {**_other_splits(out, digest), **splits}
            if corpus is not None:
                check_gold_ids(chain(*merged.values()), corpus, "the corpus", "give the corpus file of these questions")
            named = {name: [*names] for name, names in reading.named.items() if names}
            named |= skipped_files(sources, files) if report is None else {}
            named |= {f"{name}, the first": names[:1] for name, names in unmatched(chain(*splits.values())).items()}
            counts = {name: len(questions) for name, questions in splits.items()}
            summary = ImportSummary(out, len(corpus or ()), counts, notes, report or {}, named)
            summaries.append(summary)
            for name, questions in merged.items():
                save_questions(folder / f"questions.{name}.jsonl", questions)
            digests: JsonObject = {} if report else {_card_name(file): file_digest(file) for file in files}
            card: JsonObject = {"format": format_name, "files": digests, **summary.counts, **summary.report}
            if reading.alone and documents:  # the corpus is still that of the documents
                card = {**documents, "questions": {name: len(questions) for name, questions in merged.items()}}
            write_json(folder / CARD, card)

        atomic_folder(out, fill)
    return summaries[0]


def _corpus(format_name: str, reading: ImportedData, files: Sequence[Path], out: Path, path: Path) -> CorpusFile | None:
    """Write the passages to `path`. Questions without passages use the corpus in `out`, `None` without one."""
    passages = iter(reading.passages)
    first = next(passages, None)
    if first is not None:
        return CorpusFile.write(path, chain([first], passages), source=f"what was read as {format_name}")
    if not reading.alone:
        raise _nothing_found("passages", files, format_name, reading.report)
    if not (out / CORPUS).exists():
        return None
    link_file(out / CORPUS, path)
    return CorpusFile.scan(path)


def source_files(format_name: str, sources: Sequence[Path]) -> list[Path]:
    """The files of a format among files and folders. Raises `DataError`."""
    return _open_format(format_name, sources)[1]


def read_sources(
    format_name: str, sources: Sequence[Path], settings: Mapping[str, object] | None = None
) -> tuple[ImportedData, list[Path]]:
    """Read files and folders in a format, without writing anything. Returns the data and the files. Raises `DataError`
    and `SettingError`."""
    reader, files = _open_format(format_name, sources)
    return _read(format_name, reader, files, settings), files


def _open_format(name: str, sources: Sequence[Path]) -> tuple[ImportFormat, list[Path]]:
    """A format, and its files among files and folders."""
    reader = cast(ImportFormat, plugins.find_plugin("data format", PACKAGE, name, CONTRACT))
    return reader, reader.files(sources) if hasattr(reader, "files") else expand(sources, plugin_name(name))


def _read(name: str, reader: ImportFormat, files: Sequence[Path], values: Mapping[str, object] | None) -> ImportedData:
    """Read files in a format. Raises `SettingError` if a user's own format fails."""
    kind: type[Settings] | None = getattr(reader, "SETTINGS", None)
    if kind is None and values:
        raise SettingError(f"{name} has no settings, and {next(iter(values))!r} was given; leave it out")
    settings = () if kind is None else (make_settings(kind, values or {}),)
    with running("data format", name):
        reading: object = reader.read(files, *settings)
    if not isinstance(reading, ImportedData):
        raise SettingError(f"`read` of {name} returns an ImportedData, not {type(reading).__name__}; mend it")
    return reading


def _documents_card(out: Path) -> JsonObject:
    """The `source.json` of imported documents; empty for other folders."""
    card = read_json(out / CARD) if (out / CARD).is_file() else None
    return card if isinstance(card, dict) and "unread" in card else {}


def _nothing_found(noun: str, files: Sequence[Path], format_name: str, report: JsonObject | None = None) -> DataError:
    unread_files = cast(list[dict[str, str | list[str]]], (report or {}).get("unread", []))
    reasons = "".join(f"; {entry['path']}: {entry['reasons'][0]}" for entry in unread_files[:_MOST_REASONS])
    return DataError(f"no {noun} found in {', '.join(map(str, files))} as {format_name}; check the files{reasons}")


def _card_name(file: Path) -> str:
    """The name of a source without its path, but with its folder if this names the data set (`nq/train.jsonl`)."""
    return f"{file.absolute().parent.name}/{file.name}" if origin_of(file) is not None else file.name


def parse_shares(text: str) -> dict[str, float]:
    """Parse `train=.7,dev=.1,test=.2`. Raises `SettingError`."""
    shares: dict[str, float] = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise SettingError(f"{pair!r} is not a share; write for example train=.7,dev=.1,test=.2")
    check_shares(shares)
    return shares


def split_by_shares(questions: Sequence[Question], shares: Mapping[str, float]) -> dict[str, list[Question]]:
    """Split questions by a hash of their ids, so that a question's split does not depend on the others.

    The shares are met on average. Raises `SettingError` if a share gets no question.
    """
    splits: dict[str, list[Question]] = {name: [] for name in shares}
    for question in questions:
        splits[split_of(question.id, shares)].append(question)
    for name, share in shares.items():
        if share > 0 and not splits[name]:
            raise SettingError(f"no question fell to {name!r}: {share} of {len(questions)} is too small a share")
    return {name: members for name, members in splits.items() if members}


def split_of(ident: str, shares: Mapping[str, float]) -> str:
    """The split of an id, by its hash. The shares sum to 1."""
    point = int.from_bytes(hashlib.sha256(ident.encode()).digest()[:8], "big") / 2**64
    for name, share in shares.items():
        if point < share:
            return name
        point -= share
    return [name for name, share in shares.items() if share > 0][-1]


def _splits(
    format_name: str,
    reading: ImportedData,
    split: str | None,
    shares: Mapping[str, float] | None,
    deal: SplitAssignment | None,
) -> dict[str, list[Question]]:
    if reading.splits:
        if not (split is None and shares is None and deal is None):
            names = ", ".join(reading.splits)
            raise SettingError(
                f"{format_name} brings its own splits ({names}); leave --split, --shares, --train and --test out"
            )
        for name in reading.splits:
            _check_name(name)
        return {name: list(questions) for name, questions in reading.splits.items()}
    if not reading.questions:
        return {}
    questions = list(reading.questions)
    splits = deal.apply(reading.published) if deal is not None else {split or TEST: questions}
    asked = (question for question in chain(*splits.values()) if has_text(question.question))  # others are left out
    for ident, count in Counter(question.id for question in asked).items():
        if count > 1:
            raise DataError(f"the question id {ident!r} stands twice in the sources; ids must be unique")
    return split_by_shares(questions, shares) if shares else splits


def _check_options(
    format_name: str, split: str | None, shares: Mapping[str, float] | None, deal: SplitAssignment | None
) -> None:
    if format_name == "documents" and not (split is None and shares is None and deal is None):
        raise SettingError("documents have no questions; leave --split, --shares, --train and --test out")
    _check_name(TEST if split is None else split)
    if shares is not None:
        check_shares(shares)
    if deal is not None and (split is not None or shares is not None):
        raise SettingError("--train and --test deal the questions out; leave --split and --shares out")


def _check_name(split: str) -> None:
    if not _SPLIT.fullmatch(split):
        raise SettingError(f"{split!r} cannot name a split; use letters, digits, - and _")


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise `SettingError` for shares that do not sum to 1, or whose names cannot name a split."""
    for name in shares:
        _check_name(name)
    if any(not 0 <= share <= 1 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        shares_text = ", ".join(f"{name}={share:g}" for name, share in shares.items())
        raise SettingError(f"the shares {shares_text} do not sum to 1; write for example train=.7,dev=.1,test=.2")


def _other_splits(out: Path, digest: str | None) -> dict[str, list[Question]]:
    """The splits in `out`. Raises `DataError` if its corpus does not have the `digest`, if any."""
    corpus_path = out / CORPUS
    if digest is not None and corpus_path.exists() and CorpusFile.scan(corpus_path).digest != digest:
        raise DataError(f"{out} holds another corpus; choose another folder, or delete that one first")
    files = sorted(out.glob("questions.*.jsonl"))
    return {path.name[len("questions.") : -len(".jsonl")]: load_questions(path) for path in files}
