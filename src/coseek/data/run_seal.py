"""Seal: digests that bind stored files, so that a change of what nobody can derive again is noticed.

Every row of `trajectories.jsonl` ends with the digest of its own content. When a run is closed, `run.yaml` gets digests
of all rows, whatever their order, of itself, and of the token data. They are of values, not of bytes: spaces, the order
of keys and the spelling of characters and numbers do not count. They find accidents and edits; whoever means to deceive
can write new ones. Grade caches have a digest in each row, label folders a seal over their files, and `metrics.jsonl`
has a chain of digests, since the order of its rows counts.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from coseek.core.files import Json, JsonObject, json_line, read_jsonl
from coseek.data.trajectory import Trajectory

DIGEST = "digest"
"""Key of a row's digest."""
SEAL = "seal"
"""Key of a run's seal in `run.yaml`."""
TOKENS = "tokens.jsonl"
"""The token data of a run, which its seal covers where they are written before it is closed."""


def value_digest(value: Json) -> str:
    """SHA-256 of a JSON value in one spelling, in hexadecimal digits. Equal numbers (1 and 1.0) are spelt alike."""
    # `default`: a YAML file may hold a date, of which its text counts.
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def row_digest(row: JsonObject) -> str:
    """Digest of a row's content, without the digest that it holds."""
    return value_digest({name: value for name, value in row.items() if name != DIGEST})


def bound(row: JsonObject) -> JsonObject:
    """The row with its digest."""
    return {**row, DIGEST: row_digest(row)}


def row_line(trajectory: Trajectory) -> str:
    """The line of a trajectory, with its digest."""
    return json_line(bound(trajectory.to_json()))


def chained(before: str, row: JsonObject) -> str:
    """Digest of rows in their order: of those before, and of the next one."""
    return hashlib.sha256((before + row_digest(row)).encode()).hexdigest()


def rows_digest(digests: Iterable[str]) -> str:
    """Digest of a number of rows, from theirs."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def record_digest(record: JsonObject) -> str:
    """Digest of the content of `run.yaml` without its seal."""
    return value_digest({name: value for name, value in record.items() if name != SEAL})


def file_rows_digest(path: Path) -> str:
    """Digest of the rows of a JSONL file, in any order."""
    return rows_digest(row_digest(row) for _, row in read_jsonl(path))


def seal_of(record: JsonObject, trajectories: Path) -> JsonObject:
    """The seal of a run with this record and these trajectories."""
    digests = [_stored_digest(row) for _, row in read_jsonl(trajectories)]
    seal: JsonObject = {"rows": len(digests), "trajectories": rows_digest(digests), "record": record_digest(record)}
    if (tokens := trajectories.with_name(TOKENS)).exists():
        seal["tokens"] = file_rows_digest(tokens)
    return seal


def files_seal(record: JsonObject, folder: Path, paths: Iterable[Path]) -> JsonObject:
    """The seal of a record and the JSONL files beside it."""
    files: JsonObject = {path.relative_to(folder).as_posix(): file_rows_digest(path) for path in sorted(paths)}
    return {"record": record_digest(record), "files": files}


def changed_files(seal: JsonObject, record: JsonObject, folder: Path, paths: Iterable[Path]) -> Iterator[str]:
    """What has another digest than in its seal: `record`, or a file's name. Raises `DataError` for a broken file."""
    now = files_seal(record, folder, paths)
    if seal.get("record") != now["record"]:
        yield "record"
    sealed, there = seal.get("files"), now["files"]
    assert isinstance(there, dict)
    known = sealed if isinstance(sealed, dict) else {}
    yield from (name for name in sorted({*known, *there}) if known.get(name) != there.get(name))


def _stored_digest(row: JsonObject) -> str:
    """The digest that a row holds; that of its content in a row that is older than digests."""
    stored = row.get(DIGEST)
    return stored if isinstance(stored, str) else row_digest(row)


def _plain(value: Json) -> Json:
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
