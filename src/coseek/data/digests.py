"""Digest file: `SHA256SUMS` in a closed run or label folder, one line a file, in the form of coreutils.

It is written last, and removed before a file of the folder changes, so a folder without it was stopped. It notices
accidents and edits; whoever means to deceive can write a new one. `sha256sum --check SHA256SUMS` reads it, too.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coseek.core.files import SUMS, JsonObject, atomic_write, read_lines
from coseek.core.fingerprint import file_digest

OLD_SEAL = "seal"
"""Key in `run.yaml` and `labels.yaml` of folders that an earlier version closed. Its digests are not checked."""


def write_digests(folder: Path, paths: Iterable[Path]) -> None:
    """Write the digests of the files that exist; this closes the folder."""
    there = sorted(path for path in paths if path.exists())
    with atomic_write(folder / SUMS) as file:
        file.writelines(f"{file_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in there)


def remove_digests(folder: Path) -> None:
    """Open a folder again."""
    (folder / SUMS).unlink(missing_ok=True)


def is_closed(folder: Path, record: JsonObject) -> bool:
    """Whether a folder with this record was written to its end, by this version or an earlier one."""
    return (folder / SUMS).exists() or OLD_SEAL in record


@contextmanager
def replacing(folder: Path, paths: Iterable[Path]) -> Iterator[None]:
    """Replace files of a folder: a closed one is open meanwhile, and closed again after it."""
    closed = (folder / SUMS).exists()
    remove_digests(folder)
    yield
    if closed:
        write_digests(folder, paths)


def changed_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files that differ from their digests, with what is wrong. Raises `DataError` for a digest file that is no
    text."""
    for _, line in read_lines(folder / SUMS):
        digest, _, name = line.strip().partition("  ")
        path = folder / name
        if not name or not path.is_file():
            yield path, f"it is listed in {SUMS}, and there is no such file"
        elif file_digest(path) != digest:
            yield path, f"it was changed after the folder was closed: its digest is not that in {SUMS}"
