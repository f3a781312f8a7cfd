"""Remote text: a text model behind HTTP, with a cache of texts.

    url: https://api.example.org      # a server with `/v1/chat/completions`, or the whole address of its requests
    model: its-name
    key_env: EXAMPLE_KEY              # the environment variable with the key
    cache: texts.sqlite               # created if missing
    send: {seed: null, max_tokens: max_completion_tokens}    # fields to omit, rename, replace or add

The cache key of a text is everything that was sent for it. Failures are not cached.
"""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field

from coseek.core.address import is_url
from coseek.core.cache import TextCache
from coseek.core.errors import ModelError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.http import HttpClient, HttpFailure
from coseek.core.settings import Settings, make_settings, merge_settings
from coseek.models.dialect import RowSegment, TurnRequest, dialect_of, why_wordless
from coseek.models.remote import ServerInfo, detect_server
from coseek.models.server import ServerSettings, open_client, refused_field, split_settings, with_changes
from coseek.models.text_model import OutOfTokens, Output, texts_of
from coseek.models.usage import Prices, Usage, read_usage
from coseek.models.written import visible

S = TypeVar("S", bound=Settings)


class RemoteTextModelSettings(ServerSettings):
    """A server of a text model."""

    url: str
    """The server's URL."""
    dialect: Literal["chat", "completions"] = "chat"
    """Send a prompt as the first message of a chat, or as text to complete."""
    temperature: float | None = Field(default=0.0, ge=0)
    """0 selects the most likely token; `null` sends none, for models that refuse it and sample as they like."""
    seed: int | None = 0
    """The seed sent to the server, for reproducible texts if the server supports it; `null` sends none."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """Tokens for reasoning, on top of those that a part allows for its answer: thousands for a reasoning model."""
    cache: str | None = None
    """The SQLite file of the cache, created if missing."""
    prices: Prices = Field(default=Prices())
    """The server's prices."""


@dataclass
class RemoteTextModel:
    """Generates texts on a server. Thread-safe."""

    calls: HttpClient
    served: ServerInfo
    settings: RemoteTextModelSettings
    store: TextCache | None = None
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[str]] = {}
        self._speech = dialect_of(self.settings.dialect)
        self._path = self.served.paths.path(self._speech.PATH)
        optional = {"temperature": self.settings.temperature, "seed": self.settings.seed}
        self._send = {**{name: None for name, value in optional.items() if value is None}, **self.settings.send}

    @property
    def temperature(self) -> float:
        """The temperature that is asked for; 0 where none is sent."""
        return self.settings.temperature or 0.0

    @property
    def identity(self) -> str:
        """A digest of the server's URL and of everything besides the prompt that is sent."""
        settings, model = self.settings, self.served.model
        changes = [each for each in (self._send, settings.reasoning_tokens, self.served.neutral) if each]
        return _digest([self.calls.base, settings.dialect, model, self.temperature, settings.seed or 0, *changes])

    @property
    def concurrency(self) -> int:
        """Prompts that the server answers at once."""
        return self.calls.patience.concurrency

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One text per prompt, in order, each of at most `max_tokens` tokens. Failures are a `PartialFailure`.

        Equal prompts are sent once, also by several threads. Each text is cached as soon as it arrives.
        """
        sent = max_tokens + self.settings.reasoning_tokens
        neutral = self.served.neutral
        asks = (self._ask(prompt, sent) for prompt in prompts)
        bodies = [with_changes({**neutral, **self._speech.body(ask)}, self._send) for ask in asks]
        keys = [_digest([self.calls.base, self._path, body]) for body in bodies]
        texts, mine = self._claim(keys)
        try:
            self._fill(dict(zip(keys, bodies, strict=True)), mine, sent)
        finally:
            with self._lock:
                for key in mine:
                    del self._under_way[key]
            for text in mine.values():
                if not text.done():
                    text.set_exception(ModelError("the call was interrupted"))
        return texts_of([_output(texts[key]) for key in keys])

    def _ask(self, prompt: str, max_tokens: int) -> TurnRequest:
        segments = (RowSegment(False, (), prompt),)
        return TurnRequest(self.served.model, segments, max_tokens, (), self.temperature, self.settings.seed or 0)

    def _claim(self, keys: Sequence[str]) -> tuple[dict[str, "Future[str]"], dict[str, "Future[str]"]]:
        """The texts to come by key, and those among them that this thread has to fetch."""
        with self._lock:
            mine = {key: Future[str]() for key in keys if key not in self._under_way}
            self._under_way |= mine
            return {key: self._under_way[key] for key in keys}, mine

    def _fill(self, bodies: Mapping[str, JsonObject], texts: Mapping[str, "Future[str]"], max_tokens: int) -> None:
        """Fetch texts from the cache or the server. A text is cached before it leaves `_under_way`, and claimed before
        the cache is read, so that no thread misses it in both."""
        stored = (self.store.read(list(texts)) if self.store is not None else None) or {}
        known = {key: text for key, text in stored.items() if visible(text).strip()}  # older caches hold empty replies
        for key, text in known.items():
            texts[key].set_result(text)
        sent = {self.calls.submit("POST", self._path, bodies[key]): key for key in texts if key not in known}
        with self._lock:
            self.usage.remembered += len(known)
        try:
            for future in as_completed(sent):
                key = sent[future]
                try:
                    self._keep(key, future, texts[key], max_tokens)
                except HttpFailure as error:
                    texts[key].set_exception(ModelError(f"{error}{refused_field(error, bodies[key])}"))
                except (ValueError, CancelledError) as error:
                    texts[key].set_exception(ModelError(str(error) or "the connection to the server was closed"))
        finally:
            for future in sent:
                future.cancel()

    def _keep(self, key: str, answer: "Future[JsonObject]", text: "Future[str]", max_tokens: int) -> None:
        """Read and cache one answer. A reply without words is a failure, which is not cached."""
        counted = read_usage(answer.result())
        with self._lock:
            self.usage.add(counted)
        turn = self._speech.read(answer.result())
        if not visible(turn.text).strip():
            why = why_wordless(turn, max_tokens)
            more = OutOfTokens(f"{why}; raise reasoning_tokens of its server")
            text.set_exception(more if turn.cut_off else ModelError(why))
            return
        if self.store is not None:
            self.store.write({key: turn.text})
        text.set_result(turn.text)


def _output(text: "Future[str]") -> Output:
    """The text when it is there, or its error."""
    try:
        return text.result()
    except ModelError as error:
        return error


def open_remote_text(settings: RemoteTextModelSettings) -> RemoteTextModel:
    """Open the client of a server. If no model is named, the server is asked for its model."""
    calls, paths = open_client(settings.url, settings)
    served = detect_server(calls, paths, settings.dialect, settings.model)
    store = None if settings.cache is None else TextCache(Path(settings.cache))
    return RemoteTextModel(calls, served, settings, store)


def named_server(name: str) -> RemoteTextModelSettings | None:
    """The settings of a server named by a URL, which may hold settings, or a YAML file; `None` for another name."""
    return server_settings(name, RemoteTextModelSettings)


def server_settings(name: str, kind: type[S]) -> S | None:
    """The settings of a kind with a `url`, named by a URL (see `split_settings`) or a YAML file; `None` for another
    name."""
    if is_url(name):
        url, settings = split_settings(name)
        return make_settings(kind, {"url": url, **settings})
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        return None
    tree = read_yaml(path, "model file", "`name: value` lines, `url` among them")
    if isinstance(address := tree.get("url"), str) and "#" in address:
        url, settings = split_settings(address)
        tree = {**merge_settings(kind, tree, settings), "url": url}
    return make_settings(kind, tree, path)


def _digest(parts: list[object]) -> str:
    # ASCII: external text may hold lone surrogates, which cannot be encoded.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
