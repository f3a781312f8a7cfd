"""Retriever service: several named retrievers and one batcher. Knows no HTTP.

An index that is replaced on disk is opened beside the old one, searched once, and takes over. A request is answered by
the index that was in place when it arrived.
"""

import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit, urlunsplit

from coseek import __version__
from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, dump_settings
from coseek.core.visible import visible
from coseek.retrieval.factory import Stamp
from coseek.retrieval.retriever import ReplaceableRetriever, Retriever, fields_read, with_all_under
from coseek.serve.batching import Batcher
from coseek.serve.contract import RefusedRequest
from coseek.serve.settings import ServeSettings
from coseek.serve.worker import Service

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of indexes, which become parts of URLs."""
TAKEN = frozenset({"retrieve", "info", "health", "openapi.json"})
LIMITS = {"max_queries", "max_query_chars", "max_context_chars", "max_topk", "max_hits", "max_body_bytes"}
"""Settings that bound a request; `/info` states them."""
_SECRET = frozenset({"token", "secret", "password", "key", "authorization"})


@dataclass(frozen=True, slots=True)
class Index:
    """An open retriever."""

    retriever: Retriever
    passages: int | None
    """`None` where the corpus is remote."""
    card: JsonObject
    """Its part of the answer of `/info`."""

    @classmethod
    def of(cls, name: str, retriever: Retriever) -> "Index":
        corpus = retriever.corpus
        passages = None if corpus is None else len(corpus)
        settings = getattr(retriever, "settings", None)
        shown = without_secrets(dump_settings(settings)) if isinstance(settings, Settings) else {}
        view = getattr(settings, "view", "query")
        card: JsonObject = {
            "index": name,
            "name": retriever.name,
            "identity": retriever.identity,
            "view": str(view),
            "reads": fields_read(retriever).to_json(),
            "passages": passages,
            "settings": shown,
        }
        return cls(retriever, passages, card)

    @property
    def follows(self) -> bool:
        """Whether it goes on over an index that a server has replaced."""
        return any(isinstance(one, ReplaceableRetriever) for one in with_all_under(self.retriever))

    @property
    def identity(self) -> str:
        """The identity of the retriever, which `/info` states, too. Where it follows, a server may be asked."""
        with suppress(RetrieverError):
            if self.follows:
                return self.retriever.identity
        return str(self.card["identity"])


class RetrieverService(Service[ServeSettings]):
    """Serves named retrievers, which are opened in the search thread."""

    def __init__(
        self,
        openers: Mapping[str, Callable[[], Retriever]],
        settings: ServeSettings,
        stamps: Mapping[str, Callable[[], Stamp | None]] | None = None,
    ) -> None:
        """`openers`: name → a function that opens the retriever; the first is the default. `stamps`: name → `stamp_of`
        its indexes; they are watched."""
        for name in openers:
            check_name(name)
        if not openers:
            raise SettingError("there is nothing to serve; name an index")
        if settings.max_queries > settings.queue:
            raise SettingError(
                f"a request may bring {settings.max_queries} queries and the queue holds {settings.queue}; "
                "make the queue longer or requests smaller"
            )
        self.names = tuple(openers)
        self.batcher = Batcher(settings.batch, settings.queue, settings.wait_ms / 1_000, settings.most_wait_s)
        super().__init__(settings, self.batcher)
        self.indexes: dict[str, Index] = {}
        self._openers = openers
        self._opening = next(iter(openers))
        self._stamps = stamps or {}
        self._opened_stamps: dict[str, Stamp | None] = {}
        self._closing = threading.Event()

    @property
    def unopened(self) -> str:
        """Why nothing can be searched yet; empty when all is open."""
        if self.failure is not None:
            return f"{self._opening} could not be opened"
        return f"{self._opening} is being opened" if len(self.indexes) < len(self.names) else ""

    def index(self, name: str) -> Index:
        """An open index. Raises `RefusedRequest` (503) until all indexes are open."""
        if self.unopened:
            raise RefusedRequest(503, f"{self.unopened}; retry later", retry_after_s=1)
        return self.indexes[name]

    def health(self) -> JsonObject:
        why = "the service is stopping" if self.stopping else self.unopened
        return {"ready": not why, "why": why, "waiting": self.batcher.waiting, "faults": self.batcher.faults}

    def info(self, name: str) -> JsonObject:
        """The card of an index, with what it reads of a query's context, and the limits of a request."""
        limits = self.settings.model_dump(include=LIMITS)
        said: JsonObject = {"topk": self.settings.topk, "limits": limits, "indexes": list(self.names)}
        index = self.index(name)
        return {**index.card, "identity": index.identity, **said, "coseek": __version__}

    def close(self, wait_s: float) -> bool:
        self._closing.set()
        return super().close(wait_s)

    def _open(self) -> None:
        for name in self._openers:
            self._opening = name
            self.indexes[name] = self._opened(name)
        if self._stamps:
            threading.Thread(target=self._watch, name="coseek-watch", daemon=True).start()

    def _opened(self, name: str) -> Index:
        """Open an index and search it once; again if it was replaced meanwhile, since then its files may not match."""
        while True:
            stamp = self._opened_stamps[name] = self._stamp(name)
            index = Index.of(name, self._openers[name]())
            if index.passages is not None:  # a search of a remote retriever may cost money
                _warm_up(index.retriever)
            if self._stamp(name) == stamp:
                return index

    def _stamp(self, name: str) -> Stamp | None:
        return self._stamps[name]() if name in self._stamps else None

    def _watch(self) -> None:
        """Look for replaced indexes until the service closes."""
        while not self._closing.wait(self.settings.watch_s):
            for name in self._stamps:
                if self._stamp(name) not in (None, self._opened_stamps[name]):
                    self._renew(name)

    def _renew(self, name: str) -> None:
        """Put the new index in place. The old one stays where that fails, until it is replaced again."""
        try:
            self.indexes[name] = self._opened(name)
        except Exception as error:  # noqa: BLE001 (whatever is wrong with it, the old index can be searched)
            print(visible(f"{name} was replaced, and the old index is kept: {error}"), file=sys.stderr, flush=True)


def _warm_up(retriever: Retriever) -> None:
    """Search once, so that encoders are loaded before the first request."""
    try:
        retriever.search(["warm up"], 1)
    except RetrieverError:
        return  # a request that meets the same error reports it


def check_name(name: str) -> None:
    """Refuse a name that cannot be part of a URL, or that is a path of the service."""
    if not NAME.fullmatch(name):
        raise SettingError(f"an index cannot be served as {name!r}; use letters, digits, '-', '_' and '.'")
    if name in TAKEN:
        raise SettingError(f"{name!r} is a path of the service itself; serve the index under another name")


def without_secrets(value: Json) -> JsonObject:
    """Settings without secrets: no value of a `key` or `token`, no user or password inside a URL."""
    return cast(JsonObject, _open_to_all(value))


def _open_to_all(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _open_to_all(one) for key, one in value.items() if not _SECRET & set(key.lower().split("_"))}
    if isinstance(value, list):
        return [_open_to_all(one) for one in value]
    if isinstance(value, str) and "://" in value:
        return _bare_url(value)
    return value


def _bare_url(url: str) -> str:
    """The URL without user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
