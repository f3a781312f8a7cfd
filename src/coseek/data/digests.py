"""Digests: record the parts that made a folder's rows, and the contents of the folder when it was closed.

*Identities* are digests of the parts that stored rows were made with, since files at a path can be replaced.

The *digest file* is `SHA256SUMS` in a closed run or label folder, one line per file, in the format of coreutils
(`sha256sum --check SHA256SUMS`). It is written last, and removed before a file of the folder changes, so a folder
without it was interrupted. It reveals accidents and edits, but not forgery.

Last: the names of coseek's own files, which no other output may take.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError, SettingError
from coseek.core.files import RECORDS, SUMS, Json, atomic_write, read_lines
from coseek.core.fingerprint import file_digest
from coseek.data.question import Question


def write_digests(folder: Path, paths: Iterable[Path]) -> None:
    """Write the digests of the files that exist. This closes the folder."""
    existing = sorted(path for path in paths if path.exists())
    with atomic_write(folder / SUMS) as file:
        file.writelines(f"{file_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in existing)


def remove_digests(folder: Path) -> None:
    """Reopen a closed folder."""
    (folder / SUMS).unlink(missing_ok=True)


@contextmanager
def replacing(folder: Path, paths: Iterable[Path]) -> Iterator[None]:
    """Replace files of a folder. A closed folder is reopened, and closed again at the end."""
    was_closed = (folder / SUMS).exists()
    remove_digests(folder)
    yield
    if was_closed:
        write_digests(folder, paths)


def changed_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files that differ from their digests, each with a description. Raises `DataError` if the digest file is not
    text."""
    for _, line in read_lines(folder / SUMS):
        digest, _, name = line.strip().partition("  ")
        path = folder / name
        if not name or not path.is_file():
            yield path, f"it is listed in {SUMS}, and there is no such file"
        elif file_digest(path) != digest:
            yield path, f"it was changed after the folder was closed: its digest differs from that in {SUMS}"


Identities: TypeAlias = Mapping[str, str]
"""A part's name (`questions`, `agent`, `policy.folder`) → its digest, or a full description in words."""
KEY = "identities"
"""Key of the identities in `run.yaml` and `recipe.yaml`."""


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def value_digest(value: Json) -> str:
    """SHA-256 of a JSON value in canonical form, in hexadecimal digits. Equal numbers (1 and 1.0) are written alike."""
    # `default`: dates of a YAML file count as text.
    return digest(json.dumps(_normalise(value), sort_keys=True, separators=(",", ":"), default=str))


def questions_digest(questions: Iterable[Question]) -> str:
    """Digest of the questions in order."""
    sha = hashlib.sha256()
    for question in questions:
        # Escaped, since a lone surrogate cannot be encoded.
        sha.update(json.dumps(question.to_json(), sort_keys=True).encode() + b"\n")
    return sha.hexdigest()


def changed_parts(recorded: Json, now: Identities) -> list[str]:
    """The parts whose identity has changed. Parts without a recorded identity are not compared."""
    recorded_parts = recorded if isinstance(recorded, dict) else {}
    return [name for name, identity in now.items() if recorded_parts.get(name, identity) != identity]


def check_identities(file: Path, recorded: Json, now: Identities) -> None:
    """Raise `SettingError` if parts differ from the `recorded` identities of the folder of `file`."""
    if changed_names := changed_parts(recorded, now):
        raise SettingError(
            f"{file.parent} was begun with other parts than there are now (what differs: {', '.join(changed_names)}); "
            "restore these parts, or choose another --out"
        )


def _normalise(value: Json) -> Json:
    if isinstance(value, dict):
        return {str(name): _normalise(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_normalise(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


_OURS = re.compile(r"(corpus|questions\..+|trajectories|labels|dropped|texts)\.jsonl(\.gz)?")
"""File names that are always reserved, even before the folder exists."""
_MARKS = (*RECORDS, "index.json", "corpus.jsonl")
"""Files that mark a folder of coseek."""
_BESIDE = re.compile(
    r"(metrics|tokens|baselines|reply\..+|verdict\..+)\.jsonl|(world|source|synthesis|index|checksums|corpus|encoder)\.json"
)
"""File names that are reserved in a folder with a mark."""


def check_output_file(path: Path | None, *endings: str) -> None:
    """Raise `DataError` if `path` is a folder, has none of the `endings`, or is a file of a data set, a run, labels or
    an index."""
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it")
    if path.suffix not in endings:
        raise DataError(f"{path}: name a file that ends in {' or '.join(endings)}")
    is_marked = any((path.parent / mark).is_file() for mark in _MARKS)
    if _OURS.fullmatch(path.name) or (is_marked and _BESIDE.fullmatch(path.name)):
        raise DataError(
            f"{path.name} is the name of a file that coseek keeps in {path.parent}, which would be lost; choose "
            f"another name than {path}"
        )
