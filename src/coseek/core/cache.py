"""A persistent cache of texts by key, in one SQLite file.

Safe for threads, processes and kills. A broken file, a full disk, or a file that another process locks for too long is
an error: without the cache, paid calls would be repeated unnoticed.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError, DiskFault, UserError
from coseek.core.files import check_link

SCHEMA = 1
"""Version of the file, stored as `user_version`."""
_MARK = 0x636F7374
"""`application_id` of the file."""
_TOGETHER = 500
"""Keys per SELECT; SQLite allows at least 999."""
_PATIENCE_S = 10.0
"""Seconds to wait while another process writes."""


class TextCache:
    """Key → text. The column `used` orders texts by their last write or use, for eviction."""

    def __init__(self, path: Path, max_rows: int = 1_000_000) -> None:
        """Keep the `max_rows` most recently used texts. Raises `DiskFault` or `DataError`."""
        self.path, self.max_rows = path, max_rows
        self._lock = threading.Lock()  # one connection, used by one thread at a time
        self._process = 0
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskFault(f"the cache {path} cannot be made ({error.strerror}); choose another path") from None
        with self._database() as database:
            self._prepare(database)

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the cached texts of these keys; keys that are not cached are missing."""
        rows: list[tuple[str, str, int]] = []
        with self._lock, self._database() as database:
            for start in range(0, len(keys), _TOGETHER):
                batch = keys[start : start + _TOGETHER]
                marks = ",".join("?" * len(batch))
                rows += database.execute(f"SELECT key, text, used FROM texts WHERE key IN ({marks})", batch)
            self._mark_used(database, rows)
        return {key: text for key, text, _ in rows}

    def write(self, texts: Mapping[str, str]) -> None:
        """Store texts, and evict the least recently used ones. A key keeps its first text."""
        with self._lock, self._database() as database, _transaction(database):
            newest = _newest(database)
            database.executemany(
                "INSERT INTO texts VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET used = excluded.used",
                [(key, text, newest + tick) for tick, (key, text) in enumerate(texts.items(), start=1)],
            )
            database.execute("DELETE FROM texts WHERE used <= ?", (newest + len(texts) - self.max_rows,))

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def _mark_used(self, database: sqlite3.Connection, rows: Sequence[tuple[str, str, int]]) -> None:
        """Update only texts in the older half of the counter, so that most reads write nothing."""
        threshold = _newest(database) - self.max_rows // 2
        old_keys = [key for key, _, used in rows if used <= threshold]
        if old_keys:
            with _transaction(database):
                ticks = enumerate(old_keys, start=_newest(database) + 1)
                database.executemany("UPDATE texts SET used = ? WHERE key = ?", list(ticks))

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Open the connection if necessary. SQLite's errors become `DataError` or `DiskFault`."""
        try:
            check_link(self.path)
            if self._connection is None or self._process != os.getpid():  # a connection is invalid after a fork
                self._connection = sqlite3.connect(
                    self.path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False
                )
                self._process = os.getpid()
                weakref.finalize(self, self._connection.close)
            yield self._connection
        except sqlite3.ProgrammingError:
            raise  # a bug: used after `close`
        except sqlite3.DatabaseError as error:
            raise self._failure(error) from None

    def _failure(self, error: sqlite3.DatabaseError) -> UserError:
        # Python's own error for a text that is not UTF-8 has no code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return DiskFault(f"the cache {self.path} is held by another process; wait for it, or choose another path")
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return DataError(f"the cache {self.path} is broken ({error}); delete it, or choose another path")
        return DiskFault(f"the cache {self.path} cannot be used ({error}); make room, or choose another path")

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Create the table in a new file. Raises `DataError` for another program's database."""
        with _transaction(database):  # of two processes, one creates the table
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
        with suppress(sqlite3.OperationalError):  # busy: another process does the same, or writes
            database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit the block as a whole, or roll it back."""
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
