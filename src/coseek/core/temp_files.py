"""Temporary files and folders of unfinished writes, and the removal of those that a killed process left.

They are hidden and named `.NAME.RANDOM.part`. The next process that locks their folder removes what a kill left.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.part")
"""`tempfile` draws eight characters for a name."""


@contextmanager
def temp_file(path: Path) -> Iterator[Path]:
    """An empty temporary file beside `path` for the block, which renames it; removed if the block does not."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        _remove(Path(name))


@contextmanager
def temp_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder beside `path` for the block, which renames it; removed if the block does not."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield folder
    finally:
        _remove(folder)


def replace_folder(new: Path, path: Path) -> None:
    """Rename `new` to `path`. A folder of that name is `.NAME.old` meanwhile; an error leaves it as it was."""
    old = _old(path)
    try:
        if path.exists():
            _remove(old)
            os.replace(path, old)
        os.replace(new, path)
    except BaseException:
        recover_folder(path)
        raise
    _remove(old)


def recover_folder(path: Path) -> None:
    """Finish a replacement that a crash interrupted: restore the old folder, or remove it beside the new one, if that
    is possible."""
    old = _old(path)
    if not old.is_dir():  # a file of that name is not ours
        return
    if not path.exists():
        os.replace(old, path)
    else:
        _remove(old)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def sweep(folder: Path) -> None:
    """Remove what killed processes left in an output folder and below: temporary files, and halves of replacements. The
    caller is the only one that writes there; folders inside that have a lock of their own are left alone."""
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        for name in [*folders, *files]:
            if _TEMPORARY.fullmatch(name):
                _remove(here / name)
            elif name in folders and name.startswith(".") and name.endswith(".old"):
                recover_folder(here / name[1 : -len(".old")])
        folders[:] = [name for name in folders if not (here / name / ".lock").exists()]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
