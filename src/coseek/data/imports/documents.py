"""Documents: a user's own files and folders of them, as a corpus without questions.

Text, Markdown, HTML, PDF, DOCX, reStructuredText, CSV, JSON and JSON lines, mails and mailboxes, and zip and tar
archives of these. A passage has `meta` with `path` (of its file, from the name of the given folder on), `previous` and
`next` (ids of its neighbours), and `page`, `row`, `url`, `date`, `author` and front matter where there are any.

Every file ends with one outcome: *read*, *in part*, *failed* or *left out* (links, hidden files, kinds without a
reader); `source.json` lists all that were not read, each with its reasons.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from coseek.core.errors import DataError, MissingExtra, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import dump_settings
from coseek.data.documents.archive import DocumentSettings
from coseek.data.documents.document import clean
from coseek.data.documents.reading import DocumentReader
from coseek.data.documents.token_count import check_tokenizer
from coseek.data.imports._sources import ImportedData
from coseek.data.passage import Passage

SETTINGS = DocumentSettings
_OURS = (("corpus.jsonl", "source.json"), ("index.json", "corpus.json"))
"""Files by which a data set and an index are known."""
_JUNK = ("__MACOSX", "__pycache__", "Thumbs.db", "node_modules")


def files(sources: Sequence[Path]) -> list[Path]:
    """The given files and folders themselves, which must exist."""
    for source in sources:
        if not source.exists():
            raise DataError(f"there is no file or folder {source}; check the path")
    return list(sources)


def read(sources: Sequence[Path], settings: DocumentSettings) -> ImportedData:
    """Passages file by file; the report is complete when they are all read."""
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
    with DocumentReader(settings) as reader:
        for path, name, reason in _found(sources):
            if reason:
                reader.records.append({"path": name, "kind": "other", "outcome": "left out", "reasons": [reason]})
            else:
                yield from reader.read(path, name)
        report.update(_report(reader.records, settings))


def _found(sources: Sequence[Path]) -> Iterator[tuple[Path, str, str]]:
    """(file, its name, why it is left out) of every file, by name. Links are not followed."""
    named, labels = dict[str, int](), set[str]()
    for source in sources:
        top = source.resolve().name or "root"
        named[top] = named.get(top, 0) + 1
        top = top if named[top] == 1 else f"{top} {named[top]}"
        if not source.is_dir():
            yield source, clean(top), "" if source.is_file() else "it is no ordinary file"
            continue
        for folder, folders, names in os.walk(source):
            below = Path(folder)
            inside = Path(top) / below.relative_to(source)
            hidden = [name for name in folders if _is_closed(below / name)]
            folders[:] = sorted(set(folders) - set(hidden))
            for name in sorted([*names, *hidden]):
                path = below / name
                if name.startswith(".") and name.endswith(".part"):  # what this import or another one is writing
                    continue
                label = " ".join(clean((inside / name).as_posix().encode("utf-8", "replace").decode()).split())
                while label in labels:  # names that differ in characters that were cleaned away
                    label += "_"
                labels.add(label)
                yield path, label, _left_out(path, name in hidden)


def _left_out(path: Path, is_folder: bool) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "a link, which is not followed"
    if _is_junk(path.name):
        return f"a hidden {'folder' if is_folder else 'file'}, or one that programs keep for themselves"
    if is_folder:
        return "a data set or an index of coseek"
    return "" if stat.S_ISREG(mode) else "it is no ordinary file"


def _is_closed(folder: Path) -> bool:
    """Whether a folder is left out whole: a link, a hidden one, a data set or an index."""
    ours = any(all((folder / name).is_file() for name in names) for names in _OURS)
    return ours or _is_junk(folder.name) or folder.is_symlink()


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name in _JUNK


def _report(records: Sequence[JsonObject], settings: DocumentSettings) -> JsonObject:
    """Counts by kind, the files that were not read whole, and the digest of each that was."""
    kinds: dict[str, dict[str, int]] = {}
    for record in records:
        counts = kinds.setdefault(
            str(record["kind"]),
            {"files": 0, "read": 0, "in part": 0, "failed": 0, "left out": 0, "passages": 0, "words": 0},
        )
        counts["files"] += 1
        counts[str(record["outcome"])] += 1
        for name in ("passages", "words"):
            found = record.get(name, 0)
            counts[name] += found if isinstance(found, int) else 0
    unread: list[Json] = [
        {name: record[name] for name in ("path", "kind", "outcome", "reasons")}
        for record in records
        if record["outcome"] != "read"
    ]
    digests: JsonObject = {str(record["path"]): record.get("sha256") for record in records if record.get("passages")}
    by_kind: JsonObject = {kind: dict(kinds[kind]) for kind in sorted(kinds)}
    return {"settings": dump_settings(settings), "kinds": by_kind, "unread": unread, "files": digests}
