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
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import Field

from coseek.core.cache import TextCache
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import Retriever


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
        self._store = TextCache(path, max_lists, patience_s)
        self._counting = threading.Lock()

    @property
    def corpus(self) -> Corpus | None:
        return self.engine.corpus

    @cached_property
    def identity(self) -> str:
        """The engine's: remembering changes no hit. Asked for once, since it may mean reading files or a network."""
        return self.engine.identity

    def seen(self, query: QueryLike) -> str:
        return self.engine.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The engine's lists. What is missing goes to it in one batch, equal queries once."""
        queries = as_queries(queries, k)
        # JSON first: text from outside may hold half a surrogate pair, which has no bytes.
        keys = [digest_of(self.identity, json.dumps(self.seen(query)), str(k)) for query in queries]
        known = self._store.read(list(dict.fromkeys(keys)))
        found = {key: _hits(text) for key, text in (known or {}).items()}
        missing: dict[str, QueryLike] = {}
        for key, query in zip(keys, queries, strict=True):
            if key not in found:
                missing.setdefault(key, query)
        kept = True
        if missing:
            fresh = dict(zip(missing, self.engine.search(list(missing.values()), k), strict=True))
            kept = self._store.write({key: _text(hits) for key, hits in fresh.items()})
            found = {**found, **fresh}
        with self._counting:
            self.stats.hits += len(queries) - len(missing)
            self.stats.misses += len(missing)
            self.stats.bypassed += len(missing) if known is None or not kept else 0
        return [list(found[key]) for key in keys]

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()


def _text(hits: Sequence[Hit]) -> str:
    return json.dumps([hit.to_json() for hit in hits])


def _hits(text: str) -> list[Hit]:
    return [Hit.from_json(hit) for hit in json.loads(text)]


SETTINGS = CachedSettings


def open(settings: CachedSettings, opening: OpenContext) -> Cached:
    """Open the engine and the file in front of it."""
    path = opening.path(settings.path)
    return Cached(opening.open(settings.over), path, settings.max_lists, settings.patience_s)
