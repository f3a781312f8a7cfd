"""Store: texts by key in one SQLite file. What was paid for once is not asked again, in any later run.

One file serves many threads and processes, and survives a process that is killed at any moment. While another process
holds it for too long, the store answers that it could not be read or written, and the caller goes on without; a file
that is broken, or on a disk that is full, is a sentence, for the user would otherwise pay again and again for what he
thinks kept.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError, DiskFault

SCHEMA = 1
"""Version of the file, kept as its `user_version`."""
_MARK = 0x636F7374
"""`application_id` of the file: tells it from other people's databases."""
_TOGETHER = 500
"""Keys of one SELECT; SQLite takes 999 at least."""


class _Held(Exception):
    """Another process holds the file."""


class TextCache:
    """Key → text. `used` is a clock that ticks once for every text written or marked as used."""

    def __init__(self, path: Path, max_rows: int = 1_000_000, patience_s: float = 10.0) -> None:
        """At most `max_rows` texts are kept; those not asked for the longest are dropped."""
        self.path, self.max_rows, self.patience_s = path, max_rows, patience_s
        self._lock = threading.Lock()  # one connection, used by one thread at a time
        self._process = 0
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._database() as database:
                self._prepare(database)
        except OSError as error:
            raise DiskFault(f"the cache {path} cannot be made ({error.strerror}); choose another path") from None
        except _Held:
            raise DiskFault(
                f"the cache {path} is held by another process; wait for it, or choose another path"
            ) from None

    def read(self, keys: Sequence[str]) -> dict[str, str] | None:
        """What is kept of these; `None` while the file is held by another process."""
        rows: list[tuple[str, str, int]] = []
        with self._lock:
            try:
                with self._database() as database:
                    for start in range(0, len(keys), _TOGETHER):
                        some = keys[start : start + _TOGETHER]
                        marks = ",".join("?" * len(some))
                        rows += database.execute(f"SELECT key, text, used FROM texts WHERE key IN ({marks})", some)
            except _Held:
                return None
            with suppress(_Held), self._database() as database:
                self._mark_used(database, rows)
        return {key: text for key, text, _ in rows}

    def write(self, texts: Mapping[str, str]) -> bool:
        """Keep these, and drop the oldest in their place; False when the file is held by another process."""
        try:
            with self._lock, self._database() as database, _transaction(database):
                newest = _newest(database)
                database.executemany(
                    "INSERT INTO texts VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET used = excluded.used",
                    [(key, text, newest + tick) for tick, (key, text) in enumerate(texts.items(), start=1)],
                )
                database.execute("DELETE FROM texts WHERE used <= ?", (newest + len(texts) - self.max_rows,))
        except _Held:
            return False
        return True

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()

    def _mark_used(self, database: sqlite3.Connection, rows: Sequence[tuple[str, str, int]]) -> None:
        """Texts asked for again in the older half of their time start it anew: most reads write nothing."""
        aged = _newest(database) - self.max_rows // 2
        old = [key for key, _, used in rows if used <= aged]
        if old:
            with _transaction(database):
                ticks = enumerate(old, start=_newest(database) + 1)
                database.executemany("UPDATE texts SET used = ? WHERE key = ?", list(ticks))

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The connection; what SQLite raises becomes a sentence, or `_Held`."""
        try:
            if self._connection is None or self._process != os.getpid():  # none may be carried across a fork
                self._connection = sqlite3.connect(
                    self.path, timeout=self.patience_s, isolation_level=None, check_same_thread=False
                )
                self._process = os.getpid()
                weakref.finalize(self, self._connection.close)
            yield self._connection
        except sqlite3.ProgrammingError:
            raise  # a bug of the caller's: used after `close`
        except sqlite3.DatabaseError as error:
            if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise _Held from None
            if _code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise DataError(
                    f"the cache {self.path} is broken ({error}); delete it, or choose another path"
                ) from None
            raise DiskFault(
                f"the cache {self.path} cannot be used ({error}); make room, or choose another path"
            ) from None

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Make the table of a new file; refuse a database of something else."""
        with _transaction(database):  # of two processes that find no file, one makes it
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            marks = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            if tables and marks != [_MARK, SCHEMA]:
                raise DataError(
                    f"{self.path} is a database of something else, or of another coseek; choose another path"
                )
            database.execute("CREATE TABLE IF NOT EXISTS texts (key TEXT PRIMARY KEY, text TEXT, used INTEGER)")
            database.execute("CREATE INDEX IF NOT EXISTS texts_by_use ON texts (used)")
            database.execute(f"PRAGMA application_id = {_MARK}")
            database.execute(f"PRAGMA user_version = {SCHEMA}")
        until = time.monotonic() + self.patience_s
        while not _write_ahead(database):
            if time.monotonic() > until:
                raise _Held
            time.sleep(0.01)


def _write_ahead(database: sqlite3.Connection) -> bool:
    """Readers and a writer do not wait for each other, and a killed writer leaves nothing half done.

    False when another process is at it: this one switch does not wait by itself.
    """
    try:
        database.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if _code(error) != sqlite3.SQLITE_BUSY:
            raise
        return False
    database.execute("PRAGMA synchronous = NORMAL")
    return True


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _newest(database: sqlite3.Connection) -> int:
    return cast(int, database.execute("SELECT coalesce(max(used), 0) FROM texts").fetchone()[0])


def _code(error: sqlite3.DatabaseError) -> int:
    """SQLite's primary result code."""
    return error.sqlite_errorcode & 0xFF
