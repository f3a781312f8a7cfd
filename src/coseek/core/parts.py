"""Parts: hidden files and folders of unfinished writes, and the removal of those that a kill left.

A part is `.NAME.RANDOM.part`. Its writer holds the system's lock on it, so one that nobody holds was left by a killed
process, and the next start removes it. Where the file system has no such locks, nothing is removed.
"""

import os
import shutil
import string
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

if os.name == "posix":
    import fcntl

_DRAWN = 8
"""Characters that `tempfile` draws for a name."""
_DRAWN_FROM = frozenset(string.ascii_lowercase + string.digits + "_")


@contextmanager
def part_file(path: Path) -> Iterator[Path]:
    """An empty part of the file `path`, held in the block, which renames it; removed if it does not."""
    yield from _part(path, folder=False)


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """An empty part of the folder `path`, held in the block, which renames it; removed if it does not."""
    yield from _part(path, folder=True)


def _part(path: Path, folder: bool) -> Iterator[Path]:
    for name, left in _left_in(path.parent):
        if name == path.name:
            _remove_unheld(left)
    with ExitStack() as stack:
        part = None
        while part is None or not _hold(part, stack):  # a start beside this one may have swept it before it was held
            part = _new(path, folder)
        try:
            yield part
        finally:
            _remove(part)


def _new(path: Path, folder: bool) -> Path:
    prefix = f".{path.name}."
    if folder:
        return Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=".part"))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".part")
    os.close(handle)
    return Path(name)


@lru_cache(maxsize=1024)
def _left_in(folder: Path) -> list[tuple[str, Path]]:
    """(name it was to have, part) of all parts in a folder when this process first writes there."""
    with suppress(OSError), os.scandir(folder) as entries:
        return [(whole, folder / entry.name) for entry in entries if (whole := _part_of(entry.name))]
    return []


def replace_folder(part: Path, path: Path) -> None:
    """Rename `part` to `path`. A folder of that name is `.NAME.old` meanwhile; an error leaves it as it was.

    Once the new folder is in place, an old one that cannot be removed is no error.
    """
    old = _old(path)
    with ExitStack() as stack:
        try:
            if path.exists():
                _hold(path, stack)
                _put_away(old, path)
                os.replace(path, old)
            os.replace(part, path)
            _put_away(old, path)
        except BaseException:
            recover_folder(path)
            raise


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


def _put_away(old: Path, path: Path) -> None:
    """Remove a folder that was replaced. One that cannot be removed becomes a part, which later starts try again: as
    `.NAME.old` it would stand in the way of the next replacement."""
    if old.is_dir():
        _remove(old)
    if old.is_dir():
        with suppress(OSError):
            os.replace(old, _new(path, folder=True))


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def sweep(folder: Path) -> None:
    """Remove what killed processes left in an output folder and below: parts, lock files, halves of replacements.

    The folder must be one that coseek wrote. What a living process holds stays.
    """
    for place, folders, files in os.walk(folder):
        here = Path(place)
        for name in [*folders, *files]:
            path = here / name
            if _part_of(name):
                _remove_unheld(path)
            elif name in folders and name.startswith(".") and name.endswith(".old") and _is_unheld(path):
                recover_folder(here / name[1 : -len(".old")])
            elif name.startswith(".") and name.endswith(".lock"):
                sweep_lock(path)
        folders[:] = [name for name in folders if (here / name).is_dir()]


def sweep_lock(path: Path) -> None:
    """Remove a lock file that a killed process left."""
    if _is_ours(path):
        _remove_unheld(path)


def _part_of(name: str) -> str:
    """The name of what the part with this name is of; empty for another file: `.NAME.DRAWN.part`."""
    whole, _, drawn = name.removesuffix(".part").rpartition(".")
    is_part = name.startswith(".") and name.endswith(".part") and len(drawn) == _DRAWN and _DRAWN_FROM.issuperset(drawn)
    return whole[1:] if is_part else ""


def _is_ours(lock_file: Path) -> bool:
    with suppress(OSError):
        holder = lock_file.read_bytes()
        return holder.partition(b" on ")[0].isdigit() and holder.endswith(b"\n") and holder.count(b"\n") == 1
    return False


def _remove_unheld(path: Path) -> None:
    with ExitStack() as stack:
        if _hold(path, stack, alone=True):
            _remove(path)


def _is_unheld(path: Path) -> bool:
    with ExitStack() as stack:
        return _hold(path, stack, alone=True)


def _hold(path: Path, stack: ExitStack, alone: bool = False) -> bool:
    """Hold a file or folder until the stack closes.

    `alone` fails where another holds it or where nobody can tell; else only a path that is gone fails."""
    if os.name != "posix":
        return not alone
    try:
        place = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return not alone
    stack.callback(os.close, place)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
    except OSError:  # held, or a file system without locks
        return not alone
    try:
        return os.path.samestat(os.fstat(place), path.lstat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
