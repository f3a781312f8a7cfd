"""Lock: one process at a time writes into a folder that grows, or into a file that is appended to.

The operating system keeps the lock, so a killed process leaves a hidden file behind and no lock. The lock file of a
folder lies inside it. That of a file, or of a folder that is replaced whole, lies beside it, so that it survives the
replacement. Reading takes no lock. A process may lock what it has locked already: a command locks its folder early, and
the code that writes there locks it again.
"""

import contextlib
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, finalize

from coseek.core.errors import InUse
from coseek.core.files import make_folder

if TYPE_CHECKING:
    from filelock import BaseFileLock

NAME = ".lock"
"""The lock file inside a folder; beside a path it is `.PATH.lock`."""
PATIENCE_S = 0.2
"""How long a lock is tried: a holder that is just leaving removes its file, and the next one has to look again."""


class _Hold:
    """The system's lock on one file, until nothing in this process refers to it."""

    def __init__(self, lock: "BaseFileLock", path: Path, made: Path | None) -> None:
        finalize(self, _let_go, lock, path, made, os.getpid())


class Lock:
    """A claim to write. It lasts until `release`, until nothing refers to it, or until the process ends."""

    def __init__(self, hold: _Hold) -> None:
        self._hold: _Hold | None = hold

    def release(self) -> None:
        """Give the claim up. Another claim of this process to the same place is left alone."""
        self._hold = None

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_holds: WeakValueDictionary[tuple[int, Path], _Hold] = WeakValueDictionary()
"""What this process holds. A fork copies the table and not the locks, hence the process id in the key."""
_taking = threading.Lock()


def lock_folder(folder: Path) -> Lock:
    """Claim a folder, which is made where there is none; `InUse` where another process has it."""
    return _lock(folder / NAME, folder, True, "wait until it ends, or choose another folder")


def lock_beside(path: Path, again: bool = True) -> Lock:
    """Claim a file, or a folder that is replaced whole; `InUse` where another process has it, or without `again` this
    process itself."""
    return _lock(path.with_name(f".{path.name}{NAME}"), path, again, "wait until it ends")


def lock_if_named(folder: Path | None) -> AbstractContextManager[object]:
    """Claim a folder for a block, where one is named."""
    return nullcontext() if folder is None else lock_folder(folder)


@contextmanager
def kept_lock(folder: Path) -> Iterator[Lock]:
    """A claim to a folder that outlives the block, unless the block fails."""
    lock = lock_folder(folder)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def _lock(path: Path, place: Path, again: bool, way_out: str) -> Lock:
    path = path.parent.resolve() / path.name  # one place has one lock, by whatever links it is reached
    with _taking:
        hold = _holds.get((os.getpid(), path))
        if hold is not None and not again:
            raise InUse(f"{place} is being written by this process ({os.getpid()}) already; {way_out}")
        hold = hold or _take(path, place, way_out)
        _holds[os.getpid(), path] = hold
        return Lock(hold)


def _take(path: Path, place: Path, way_out: str) -> _Hold:
    from filelock import FileLock, Timeout  # here and not above: most commands only read

    while True:
        made = None if path.parent.is_dir() else path.parent
        make_folder(path.parent)
        lock = FileLock(path, timeout=PATIENCE_S, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise InUse(f"{place} is being written by another process{_holder(path)}; {way_out}") from None
        except FileNotFoundError:
            continue  # the process that had made the folder has just taken it away again
        if os.name == "posix" and type(lock) is FileLock:  # elsewhere nobody may write into a locked file
            path.write_text(f"{os.getpid()} on {platform.node()}\n", encoding="utf-8")
        return _Hold(lock, path, made)


def _holder(path: Path) -> str:
    """Who has the lock, as far as its file says so."""
    try:
        pid, _, node = path.read_text(encoding="utf-8").strip().partition(" on ")
    except (OSError, UnicodeDecodeError):
        return ""
    if not pid.isdecimal():
        return ""
    return f" ({pid})" if node == platform.node() else f" ({pid} on {node[:80]})"


def _let_go(lock: "BaseFileLock", path: Path, made: Path | None, pid: int) -> None:
    if os.getpid() != pid:  # a fork has the object and not the lock
        return
    # Removed before it is released: who opened it meanwhile sees that it has no name, and looks again.
    with contextlib.suppress(OSError):
        if os.name == "posix":
            path.unlink()
    lock.release()
    if made is not None:
        with contextlib.suppress(OSError):  # what was written there stays
            made.rmdir()
