"""Checkpoint manifest: `manifest.json` in a checkpoint, with the SHA-256 of every other file, its step, and what binds
the rows of `metrics.jsonl` that were written before it. It is written last and has a digest of its own."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, read_json_object, write_json
from coseek.data.run_seal import DIGEST, bound, row_digest

SCHEMA = 2
NAME = "manifest.json"
METRICS = "metrics"
"""Key of `MetricsLog.seal`: the number of rows and their digest."""


def file_sum(path: Path) -> str | None:
    """SHA-256 of a file; `None` for a missing one."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(checkpoint: Path, step: int, sums: Mapping[str, str | None], metrics: JsonObject | None) -> None:
    """Write the manifest of a checkpoint whose other files are written."""
    row: JsonObject = {"schema": SCHEMA, "step": step, "sha256": cast(Json, {**sums})}
    write_json(checkpoint / NAME, bound(row if metrics is None else {**row, METRICS: metrics}))


def wrong_checkpoint(checkpoint: Path, step: int | None) -> Iterator[tuple[Path, str]]:
    """What differs from the manifest, with its file. `step` is that of the folder's name, if it has one."""
    path = checkpoint / NAME
    if not path.exists():
        yield path, "there is no manifest: the checkpoint was cut short or changed"
        return
    try:
        manifest = read_json_object(path)
    except DataError as error:
        yield path, str(error).removeprefix(f"{path}, ")
        return
    sums = manifest.get("sha256")
    if DIGEST in manifest and manifest[DIGEST] != row_digest(manifest):
        yield path, "it was changed after it was written: its digest is another one"
    if manifest.get("schema") != SCHEMA or not isinstance(sums, dict):
        yield path, f"it is no manifest of schema {SCHEMA}"
        return
    if step is not None and manifest.get("step") != step:
        yield path, f"it is of step {manifest.get('step')}, and its folder of step {step}"
    there = {file.name for file in checkpoint.iterdir()} - {NAME}
    for name in sorted({*sums, *there}):
        if name not in sums or sums[name] != file_sum(checkpoint / name):
            what = "was added to" if name not in sums else "is missing from" if name not in there else "was changed in"
            yield checkpoint / name, f"the file {what} the checkpoint after it was written"


def bound_metrics(checkpoint: Path) -> tuple[int, str] | None:
    """How many rows of `metrics.jsonl` a checkpoint binds, and their digest; `None` for one that binds none. A broken
    manifest, which `wrong_checkpoint` tells, binds none."""
    try:
        metrics = read_json_object(checkpoint / NAME).get(METRICS)
    except DataError:
        return None
    if not isinstance(metrics, dict) or not isinstance(metrics.get("rows"), int):
        return None
    return cast(int, metrics["rows"]), str(metrics.get("digest"))
