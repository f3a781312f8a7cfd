"""Locks of output folders and files: one process writes at a time.

The operating system holds the lock, so a killed process leaves a hidden file but no lock. The next process that locks
the folder removes the temporary files that the killed one left, if the folder has a record. A folder's lock file is
inside it; the lock file of a file, or of a folder that is replaced as a whole, is beside it. Reading takes no lock.
Locks are reentrant within a process.
"""

import contextlib
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize

from coseek.core.errors import InUse
from coseek.core.files import RECORDS, make_folder, real_path, sweep

if TYPE_CHECKING:
    from filelock import BaseFileLock

NAME = ".lock"
"""The lock file inside a folder; beside a path it is `.PATH.lock`."""
PATIENCE_S = 0.2
"""Seconds to retry: a process that is releasing the lock removes the lock file first."""


class Lock:
    """A lock, held until `release`, garbage collection, or the end of the process. Other locks of this process on the
    same path stay."""

    def __init__(self, lock: "BaseFileLock", path: Path, made: Path | None) -> None:
        self.is_first = lock.lock_counter == 1
        self.release = finalize(self, _release, lock, path, made, os.getpid())

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_folder(folder: Path) -> Lock:
    """Make and lock a folder. Raises `InUse` if another process holds the lock."""
    lock = _lock(folder / NAME, folder, True, "wait until it ends, or choose another folder")
    if lock.is_first and any((folder / record).exists() for record in RECORDS):
        sweep(folder)
    return lock


def lock_beside(path: Path, again: bool = True) -> Lock:
    """Lock a file, or a folder that is replaced as a whole.

    Raises `InUse` if another process holds the lock or, without `again`, if this process does.
    """
    return _lock(path.with_name(f".{path.name}{NAME}"), path, again, "wait until it ends")


def lock_if_named(folder: Path | None) -> AbstractContextManager[object]:
    """Lock a folder for a block; a no-op for `None`."""
    return nullcontext() if folder is None else lock_folder(folder)


@contextmanager
def kept_lock(folder: Path) -> Iterator[Lock]:
    """Lock a folder; keep the lock after the block unless the block fails."""
    lock = lock_folder(folder)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def _lock(path: Path, target: Path, again: bool, way_out: str) -> Lock:
    from filelock import FileLock, Timeout  # not at the top, since most commands only read

    path = real_path(path.parent) / path.name  # one lock for all links to a folder
    while True:
        new_folder = None if path.parent.is_dir() else path.parent
        make_folder(path.parent)
        lock = FileLock(path, timeout=PATIENCE_S, thread_local=False, is_singleton=True)
        if lock.is_locked and not again:
            raise InUse(f"{target} is being written by this process ({os.getpid()}) already; {way_out}")
        try:
            lock.acquire()
        except Timeout:
            raise InUse(f"{target} is being written by another process{_holder(path)}; {way_out}") from None
        except FileNotFoundError:
            continue  # the process that made the folder has just removed it
        if os.name == "posix" and type(lock) is FileLock:  # elsewhere a locked file is not writable
            path.write_text(f"{os.getpid()} on {platform.node()}\n", encoding="utf-8")
        return Lock(lock, path, new_folder)


def is_being_written(folder: Path) -> bool:
    """Whether a live process holds the folder's lock; does not take it. Processes of other machines count as alive."""
    if (holder := _pid_and_node(folder / NAME)) is None:
        return False
    pid, node = holder
    if node != platform.node():
        return True
    try:
        with contextlib.suppress(PermissionError):  # the process of another user
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _pid_and_node(path: Path) -> tuple[int, str] | None:
    """Process id and host name in a lock file; `None` if it has neither."""
    try:
        pid, _, node = path.read_text(encoding="utf-8").strip().partition(" on ")
    except (OSError, UnicodeDecodeError):
        return None
    return (int(pid), node) if pid.isdecimal() else None


def _holder(path: Path) -> str:
    """Process id and host name in a lock file, for the error; empty if it has neither."""
    if (holder := _pid_and_node(path)) is None:
        return ""
    pid, node = holder
    return f" ({pid})" if node == platform.node() else f" ({pid} on {node[:80]})"


def _release(lock: "BaseFileLock", path: Path, new_folder: Path | None, pid: int) -> None:
    if os.getpid() != pid:  # a fork has the object but not the lock
        return
    # Unlinked before the release: a process that opened the file meanwhile sees that it is unlinked, and retries.
    try:
        with contextlib.suppress(OSError):
            if os.name == "posix" and lock.lock_counter == 1:
                path.unlink()
    finally:
        lock.release()
    if new_folder is not None:
        with contextlib.suppress(OSError):  # only an empty folder is removed
            new_folder.rmdir()
