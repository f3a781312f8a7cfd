"""Documents: a user's own files and folders, as a corpus without questions.

Text, Markdown, HTML, reStructuredText, PDF, DOCX, PPTX, XLSX, EPUB, CSV, JSON and JSON lines, Jupyter notebooks,
mails, mailboxes, and zip and tar archives of these. A passage has `meta` with `path` (of its file, starting with the
name of the source folder), `previous` and `next` (ids of its neighbours), and, if known, `page`, `row`, `url`, `date`,
`author` and front matter.

Encodings that a file does not declare are guessed: UTF-8 if the bytes are valid, else by chardet. The report lists
those files, and counts them by encoding.

Every file has one outcome: *read*, *in part*, *failed* or *left out* (links, hidden files, kinds without a reader).
`source.json` lists all files that were not read, with the reasons.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias, cast

from coseek.core.errors import DataError, MissingExtra, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import dump_settings
from coseek.data.documents.document import check_tokenizer, clean
from coseek.data.documents.reading import DocumentReader, DocumentSettings, free_name
from coseek.data.imports._sources import ImportedData
from coseek.data.passage import Passage

SETTINGS = DocumentSettings
_OURS = (("corpus.jsonl", "source.json"), ("index.json", "corpus.json"))
"""Files that mark a data set and an index."""
_Fault: TypeAlias = tuple[str, str]
"""Outcome and reason for a file that is not read."""
_JUNK = ("__MACOSX", "__pycache__", "Thumbs.db", "node_modules")
_COUNTS = ("files", "read", "in part", "failed", "left out", "passages", "words")
"""Counts of the report, by kind of file."""


def files(sources: Sequence[Path]) -> list[Path]:
    """The sources themselves. Raises `DataError` if one does not exist."""
    for source in sources:
        if not source.exists():
            raise DataError(f"there is no file or folder {source}; check the path")
    return list(sources)


def read(sources: Sequence[Path], settings: DocumentSettings) -> ImportedData:
    """Read passages file by file. The report is complete after the last passage."""
    if settings.overlap > settings.size / 2:
        raise SettingError(
            f"overlap={settings.overlap} is more than half of size={settings.size}; choose a smaller one"
        )
    if settings.tokenizer is not None:
        try:
            check_tokenizer(settings.tokenizer)
        except ModuleNotFoundError:
            raise MissingExtra("tokenizers", "counting tokens (tokenizer)", "dense") from None
    report: JsonObject = {}
    return ImportedData(_passages(sources, settings, report), (), report=report)


def _passages(sources: Sequence[Path], settings: DocumentSettings, report: JsonObject) -> Iterator[Passage]:
    with closing(DocumentReader(settings)) as reader:
        for path, name, fault in _listing(sources):
            if fault is None:
                yield from reader.read(path, name)
            else:
                outcome, reason = fault
                reader.records.append({"path": name, "kind": "other", "outcome": outcome, "reasons": [reason]})
        report.update(_report(reader.records, settings))


def _listing(sources: Sequence[Path]) -> Iterator[tuple[Path, str, _Fault | None]]:
    """(file, its name, why it is not read) for every file, by name. Links are not followed."""
    tops, labels = Counter[str](), Counter[str]()
    for source in sources:
        is_folder = source.is_dir()
        top = Path(free_name(source.resolve().name or "root", tops, is_folder))
        if not is_folder:
            fault = None if source.is_file() else ("left out", "it is no ordinary file")
            yield source, free_name(clean(str(top), is_name=True), labels), fault
            continue
        errors: list[OSError] = []
        for folder, folders, names in os.walk(source, onerror=errors.append):
            parent = Path(folder)
            label_path = top / parent.relative_to(source)
            closed = {name: fault for name in folders if (fault := _fault_of(parent / name, is_folder=True))}
            folders[:] = sorted({*folders} - closed.keys())
            for name in sorted([*names, *closed]):
                if name.startswith(".") and name.endswith((".part", ".lock")):  # of a running import
                    continue
                fault = closed[name] if name in closed else _fault_of(parent / name)
                yield parent / name, _label(label_path / name, labels), fault
        for error in errors:
            path = Path(error.filename)
            yield path, _label(top / path.relative_to(source), labels), _open_fault(error)


def _label(path: Path, labels: Counter[str]) -> str:
    """The name of a file in passages and reports. Names that differ only in removed characters get a number."""
    return free_name(" ".join(clean(path.as_posix().encode(errors="replace").decode(), is_name=True).split()), labels)


def _fault_of(path: Path, is_folder: bool = False) -> _Fault | None:
    """Why a file, or a folder with all its files, is not read."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return "left out", "a link, which is not followed"
        if path.name.startswith(".") or path.name in _JUNK:
            return "left out", f"a hidden {'folder' if is_folder else 'file'}, or one that programs keep for themselves"
        if is_folder:
            is_ours = any(all((path / name).is_file() for name in names) for names in _OURS)
            return ("left out", "a data set or an index of coseek") if is_ours else None
        return None if stat.S_ISREG(mode) else ("left out", "it is no ordinary file")
    except OSError as error:
        return _open_fault(error)


def _open_fault(error: OSError) -> _Fault:
    return "failed", f"it cannot be opened ({error.strerror})"


def _report(records: Sequence[JsonObject], settings: DocumentSettings) -> JsonObject:
    """Counts by kind, the files that were not read completely, and the digests of files with passages."""
    kinds: dict[str, Counter[str]] = {}
    for record in records:
        counts = kinds.setdefault(str(record["kind"]), Counter(dict.fromkeys(_COUNTS, 0)))
        counts.update(["files", str(record["outcome"])])
        counts.update({name: cast(int, record.get(name, 0)) for name in ("passages", "words")})
    unread: list[Json] = [
        {name: record[name] for name in ("path", "kind", "outcome", "reasons")}
        for record in records
        if record["outcome"] != "read"
    ]
    digests: JsonObject = {str(record["path"]): record.get("sha256") for record in records if record.get("passages")}
    guesses: JsonObject = {str(record["path"]): record["encoding"] for record in records if record.get("encoding")}
    encodings = Counter(map(str, guesses.values()))
    by_kind: JsonObject = {kind: {**kinds[kind]} for kind in sorted(kinds)}
    guessed: JsonObject = {"guessed_encodings": {**encodings}, "guessed_files": guesses} if guesses else {}
    return {"settings": dump_settings(settings), "kinds": by_kind, **guessed, "unread": unread, "files": digests}
