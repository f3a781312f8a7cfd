"""Cached: a persistent cache in front of any retriever, shared by all later runs.

The key of a list is the other retriever's `identity` (corpus, settings, weights, view), the text that it sees of the
query, and `k`; a changed retriever has other keys. Lists of another `k` are not used, since no retriever guarantees
that a shorter list is a prefix. Failed searches are not stored.

One SQLite file serves many threads and processes, and survives kills. A broken file or a full disk is a `UserError`,
since the user would otherwise pay for searches again without notice.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from pydantic import Field

from coseek.core.cache import TextCache
from coseek.core.files import JsonObject, parsing
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.core.strict_json import parse_strict
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import LayeredRetriever, Retriever, schedule_of


class CachedSettings(Settings):
    """The cached retriever, and the cache file."""

    over: str | dict[str, object]
    """The retriever to cache: an index, a URL, a YAML file, or settings."""
    path: str
    """The SQLite file, created if missing."""
    max_lists: int = Field(default=1_000_000, ge=2)
    """Lists stored; the least recently used are dropped. A list of five passages takes about 5 KB."""


class CachedRetriever(LayeredRetriever):
    """Searches the other retriever for the lists that are not cached."""

    name = "cached"
    keeps_scores = True

    def __init__(self, over: Retriever, path: Path, max_lists: int = 1_000_000) -> None:
        super().__init__(over)
        self._is_scheduled = schedule_of(over) is not None
        self._store = TextCache(path, max_lists)

    @property
    def identity(self) -> str:
        """The other retriever's identity. Read once, since it may need files or a network, unless the other retriever
        changes during training."""
        return self.over.identity if self._is_scheduled else self._identity

    @cached_property
    def _identity(self) -> str:
        return self.over.identity

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The other retriever's lists. Missing ones are searched in one batch, equal queries once."""
        queries = as_queries(queries, k)
        # JSON first: external text may contain lone surrogates, which cannot be encoded.
        identity = self.identity
        keys = [digest_of(identity, json.dumps(self.seen(query)), str(k)) for query in queries]
        cached = self._store.read(list(dict.fromkeys(keys)))
        lists = {key: self._parse(text) for key, text in cached.items()}
        missing_queries = {key: query for key, query in zip(keys, queries, strict=True) if key not in lists}
        if missing_queries:
            searched = dict(zip(missing_queries, self.over.search(list(missing_queries.values()), k), strict=True))
            self._store.write({key: json.dumps([hit.to_json() for hit in hits]) for key, hits in searched.items()})
            lists |= searched
        return [list(lists[key]) for key in keys]

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def _parse(self, text: str) -> list[Hit]:
        with parsing(f"the cache {self._store.path}", "delete it, or choose another path"):
            return [Hit.from_json(hit) for hit in cast(list[JsonObject], parse_strict(text))]


SETTINGS = CachedSettings


def open(settings: CachedSettings, opening: OpenContext) -> CachedRetriever:
    """Open the other retriever and the cache file."""
    path = opening.path(settings.path)
    return CachedRetriever(opening.open(settings.over), path, settings.max_lists)
