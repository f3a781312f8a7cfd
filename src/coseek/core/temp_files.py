"""Temporary files and folders of unfinished writes, hidden and named `.NAME.RANDOM.part`.

The next process that locks a folder removes the temporary files that a killed process left in it.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.part")
"""`tempfile` draws eight random characters."""


@contextmanager
def temp_file(path: Path) -> Iterator[Path]:
    """An empty temporary file in the folder of `path`, for the block to rename. Removed if the block does not."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        _remove(Path(name))


@contextmanager
def temp_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder in the folder of `path`, for the block to rename. Removed if the block does not."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield folder
    finally:
        _remove(folder)


def replace_folder(new: Path, path: Path) -> None:
    """Rename `new` to `path`. An existing folder is renamed to `.NAME.old` meanwhile, and restored after an error."""
    old_path = _old_path_of(path)
    try:
        if path.exists():
            _remove(old_path)
            os.replace(path, old_path)
        os.replace(new, path)
    except BaseException:
        recover_folder(path)
        raise
    _remove(old_path)


def recover_folder(path: Path) -> None:
    """Finish a replacement that a crash interrupted: restore the old folder, or remove it if the new one is there."""
    old_path = _old_path_of(path)
    if not old_path.is_dir():  # a file of that name is not ours
        return
    if not path.exists():
        os.replace(old_path, path)
    else:
        _remove(old_path)


def _old_path_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def sweep(folder: Path) -> None:
    """Remove what killed processes left in an output folder: temporary files and interrupted replacements. The caller
    must hold the folder's lock; subfolders that have their own lock file are skipped."""
    for parent, folders, files in os.walk(folder):
        parent_folder = Path(parent)
        for name in [*folders, *files]:
            if _TEMPORARY.fullmatch(name):
                _remove(parent_folder / name)
            elif name in folders and name.startswith(".") and name.endswith(".old"):
                recover_folder(parent_folder / name[1 : -len(".old")])
        folders[:] = [name for name in folders if not (parent_folder / name / ".lock").exists()]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
