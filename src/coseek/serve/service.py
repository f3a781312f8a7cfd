"""Retriever service: several named retrievers and one batcher. Knows no HTTP."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit, urlunsplit

from coseek import __version__
from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, dump_settings
from coseek.retrieval.retriever import Retriever, fields_read
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


class RetrieverService(Service[ServeSettings]):
    """Serves named retrievers, which are opened in the search thread."""

    def __init__(self, openers: Mapping[str, Callable[[], Retriever]], settings: ServeSettings) -> None:
        """`openers`: name → a function that opens the retriever; the first is the default."""
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
        self.batcher = Batcher(settings.batch, settings.queue, settings.wait_ms / 1_000)
        super().__init__(settings, self.batcher)
        self.indexes: dict[str, Index] = {}
        self._openers = openers
        self._opening = next(iter(openers))

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
        return {**self.index(name).card, **said, "coseek": __version__}

    def _open(self) -> None:
        for name, opener in self._openers.items():
            self._opening = name
            index = Index.of(name, opener())
            if index.passages is not None:  # a search of a remote retriever may cost money
                _warm_up(index.retriever)
            self.indexes[name] = index


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
