"""Cached: a persistent memory in front of any retriever. What was found once is not searched again, in any later run.

    retriever: cached
    over: indexes/dense               # an index, a URL, a YAML file, or the lines of one
    path: searches.sqlite             # made when it is not there; as seen from this file

A list is kept under the engine's `identity` (corpus, settings, weights, view), what the engine sees of the query, and
`k`: an engine that changes finds nothing of its old self. A longer list does not answer for a shorter one, since no
retriever promises that one begins with the other. Searches that failed are not kept.

One SQLite file serves many threads and processes, and survives a process that is killed at any moment. While another
process holds it for too long, searches go straight to the engine (counted in `stats.bypassed`); a file that is broken,
or on a disk that is full, is a sentence, for the user would otherwise pay again and again for searches he thinks kept.
"""

import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from pydantic import Field

from coseek.data.errors import DataError, DiskFault
from coseek.data.passage import Corpus, Hit
from coseek.data.settings import Settings
from coseek.retrieval.opening import Opening
from coseek.retrieval.query import Asked
from coseek.retrieval.ranking import check_k
from coseek.retrieval.retriever import Retriever, digest_of

SCHEMA = 1
"""Version of the file, kept as its `user_version`."""
_MARK = 0x636F7365
"""`application_id` of the file: tells it from other people's databases."""
_TOGETHER = 500
"""Keys of one SELECT; SQLite takes 999 at least."""


class CachedSettings(Settings):
    """What is remembered, and where."""

    over: str | dict[str, object]
    """The retriever whose lists are kept: an index, a URL, a YAML file, or the lines of one."""
    path: str
    """The SQLite file; made when it is not there."""
    max_lists: int = Field(default=1_000_000, ge=2)
    """Lists kept; those not asked for the longest are dropped. A list of five passages takes about 5 KB."""
    patience_s: float = Field(default=10.0, ge=0)
    """How long to wait for another process that writes."""


@dataclass(slots=True)
class CacheStats:
    """Queries by how they were answered."""

    hits: int = 0
    """From memory, or with an equal one of the same batch."""
    misses: int = 0
    """By the engine."""
    bypassed: int = 0
    """Of the misses, those where the file was held by another process: it was not read, or the list was not kept."""


class Cached:
    """Asks the engine only what is not remembered; the hits are the engine's."""

    name = "cached"

    def __init__(self, engine: Retriever, path: Path, max_lists: int = 1_000_000, patience_s: float = 10.0) -> None:
        self.engine = engine
        self.stats = CacheStats()
        self._store = _Store(path, max_lists, patience_s)
        self._counting = threading.Lock()

    @property
    def corpus(self) -> Corpus | None:
        return self.engine.corpus

    @cached_property
    def identity(self) -> str:
        """The engine's: remembering changes no hit. Asked for once, since it may mean reading files or a network."""
        return self.engine.identity

    def seen(self, query: Asked) -> str:
        return self.engine.seen(query)

    def search(self, queries: Sequence[Asked], k: int) -> list[list[Hit]]:
        """The engine's lists. What is missing goes to it in one batch, equal queries once."""
        check_k(k)
        # JSON first: text from outside may hold half a surrogate pair, which has no bytes.
        keys = [digest_of(self.identity, json.dumps(self.seen(query)), str(k)) for query in queries]
        known = self._store.read(list(dict.fromkeys(keys)))
        found = {} if known is None else known
        missing: dict[str, Asked] = {}
        for key, query in zip(keys, queries, strict=True):
            if key not in found:
                missing.setdefault(key, query)
        kept = True
        if missing:
            fresh = dict(zip(missing, self.engine.search(list(missing.values()), k), strict=True))
            kept = self._store.write(fresh)
            found = {**found, **fresh}
        with self._counting:
            self.stats.hits += len(queries) - len(missing)
            self.stats.misses += len(missing)
            self.stats.bypassed += len(missing) if known is None or not kept else 0
        return [list(found[key]) for key in keys]

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()


class _Held(Exception):
    """Another process holds the file."""


class _Store:
    """The SQLite file: key → list. `used` is a clock that ticks once for every list written or marked as used."""

    def __init__(self, path: Path, max_lists: int, patience_s: float) -> None:
        self.path, self.max_lists, self.patience_s = path, max_lists, patience_s
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

    def read(self, keys: Sequence[str]) -> dict[str, list[Hit]] | None:
        """What is kept of these; `None` while the file is held by another process."""
        rows: list[tuple[str, str, int]] = []
        with self._lock:
            try:
                with self._database() as database:
                    for start in range(0, len(keys), _TOGETHER):
                        some = keys[start : start + _TOGETHER]
                        marks = ",".join("?" * len(some))
                        rows += database.execute(f"SELECT key, hits, used FROM lists WHERE key IN ({marks})", some)
            except _Held:
                return None
            with suppress(_Held), self._database() as database:
                self._mark_used(database, rows)
        return {key: [Hit.from_json(hit) for hit in json.loads(hits)] for key, hits, _ in rows}

    def write(self, lists: Mapping[str, Sequence[Hit]]) -> bool:
        """Keep these lists, and drop the oldest in their place; False when the file is held by another process."""
        texts = [(key, json.dumps([hit.to_json() for hit in hits])) for key, hits in lists.items()]
        try:
            with self._lock, self._database() as database, _transaction(database):
                newest = _newest(database)
                database.executemany(
                    "INSERT INTO lists VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET used = excluded.used",
                    [(key, text, newest + tick) for tick, (key, text) in enumerate(texts, start=1)],
                )
                database.execute("DELETE FROM lists WHERE used <= ?", (newest + len(texts) - self.max_lists,))
        except _Held:
            return False
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _mark_used(self, database: sqlite3.Connection, rows: Sequence[tuple[str, str, int]]) -> None:
        """Lists asked for again in the older half of their time start it anew: most reads write nothing."""
        aged = _newest(database) - self.max_lists // 2
        old = [key for key, _, used in rows if used <= aged]
        if old:
            with _transaction(database):
                ticks = enumerate(old, start=_newest(database) + 1)
                database.executemany("UPDATE lists SET used = ? WHERE key = ?", list(ticks))

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
        """Make the tables of a new file; refuse a database of something else."""
        with _transaction(database):  # of two processes that find no file, one makes it
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            marks = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            if tables and marks != [_MARK, SCHEMA]:
                raise DataError(
                    f"{self.path} is a database of something else, or of another coseek; choose another path"
                )
            database.execute("CREATE TABLE IF NOT EXISTS lists (key TEXT PRIMARY KEY, hits TEXT, used INTEGER)")
            database.execute("CREATE INDEX IF NOT EXISTS lists_by_use ON lists (used)")
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
    return cast(int, database.execute("SELECT coalesce(max(used), 0) FROM lists").fetchone()[0])


def _code(error: sqlite3.DatabaseError) -> int:
    """SQLite's primary result code."""
    return error.sqlite_errorcode & 0xFF


SETTINGS = CachedSettings


def open(settings: CachedSettings, opening: Opening) -> Cached:
    """Open the engine and the file in front of it."""
    path = opening.path(settings.path)
    return Cached(opening.open(settings.over), path, settings.max_lists, settings.patience_s)
