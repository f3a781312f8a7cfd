"""Remote text: a text model behind HTTP, with a cache of texts.

    url: https://api.example.org      # a server with `/v1/chat/completions`
    model: its-name
    key_env: EXAMPLE_KEY              # the environment variable with the key
    cache: texts.sqlite               # created if missing

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

from coseek.core.cache import TextCache
from coseek.core.errors import ModelError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, parse_base_url, read_key
from coseek.core.settings import Settings, VariableName, make_settings
from coseek.models.dialect import Dialect, RowSegment, TurnRequest, dialect_of
from coseek.models.remote import PATHS, detect_server
from coseek.models.text_model import Output, texts_of
from coseek.models.usage import Prices, Usage, read_usage

S = TypeVar("S", bound=Settings)


class RemoteTextModelSettings(Settings):
    """A server of a text model."""

    url: str
    """The server's URL."""
    dialect: Literal["chat", "completions"] = "chat"
    """Send a prompt as the first message of a chat, or as text to complete."""
    model: str | None = None
    """The model's name at the server; optional if it has only one."""
    key_env: VariableName | None = None
    """The environment variable with the server's key, which is stored nowhere."""
    temperature: float = Field(default=0.0, ge=0)
    """0 selects the most likely token."""
    seed: int = 0
    """The seed sent to the server, for reproducible texts if the server supports it."""
    cache: str | None = None
    """The SQLite file of the cache, created if missing."""
    patience: HttpSettings = Field(default=HttpSettings())
    """Concurrency, timeouts and retries of calls."""
    prices: Prices = Field(default=Prices())
    """The server's prices."""


@dataclass
class RemoteTextModel:
    """Generates texts on a server. Thread-safe."""

    calls: HttpClient
    model: str
    dialect: str
    temperature: float = 0.0
    seed: int = 0
    store: TextCache | None = None
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[str]] = {}

    @property
    def identity(self) -> str:
        """A digest of the server's URL and of everything besides the prompt that is sent."""
        return _digest([self.calls.base, self.dialect, self.model, self.temperature, self.seed])

    @property
    def concurrency(self) -> int:
        """Prompts that the server answers at once."""
        return self.calls.patience.concurrency

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One text per prompt, in order, each of at most `max_tokens` tokens. Failures are a `PartialFailure`.

        Equal prompts are sent once, also by several threads. Each text is cached as soon as it arrives.
        """
        speech = dialect_of(self.dialect)
        bodies = [speech.body(self._ask(prompt, max_tokens)) for prompt in prompts]
        keys = [_digest([self.calls.base, speech.PATH, body]) for body in bodies]
        texts, mine = self._claim(keys)
        try:
            self._fill(speech, dict(zip(keys, bodies, strict=True)), mine)
        finally:
            with self._lock:
                for key in mine:
                    del self._under_way[key]
            for text in mine.values():
                if not text.done():
                    text.set_exception(ModelError("the call was interrupted"))
        return texts_of([_output(texts[key]) for key in keys])

    def _ask(self, prompt: str, max_tokens: int) -> TurnRequest:
        return TurnRequest(self.model, (RowSegment(False, (), prompt),), max_tokens, (), self.temperature, self.seed)

    def _claim(self, keys: Sequence[str]) -> tuple[dict[str, "Future[str]"], dict[str, "Future[str]"]]:
        """The texts to come by key, and those among them that this thread has to fetch."""
        with self._lock:
            mine = {key: Future[str]() for key in keys if key not in self._under_way}
            self._under_way |= mine
            return {key: self._under_way[key] for key in keys}, mine

    def _fill(self, speech: Dialect, bodies: Mapping[str, JsonObject], texts: Mapping[str, "Future[str]"]) -> None:
        """Fetch texts from the cache or the server. A text is cached before it leaves `_under_way`, and claimed before
        the cache is read, so that no thread misses it in both."""
        known = (self.store.read(list(texts)) if self.store is not None else None) or {}
        for key, text in known.items():
            texts[key].set_result(text)
        sent = {self.calls.submit("POST", speech.PATH, bodies[key]): key for key in texts if key not in known}
        with self._lock:
            self.usage.remembered += len(known)
        try:
            for future in as_completed(sent):
                self._keep(speech, sent[future], future, texts[sent[future]])
        finally:
            for future in sent:
                future.cancel()

    def _keep(self, speech: Dialect, key: str, answer: "Future[JsonObject]", text: "Future[str]") -> None:
        """Read and cache one answer."""
        try:
            found = speech.read(answer.result()).text
        except (HttpFailure, ValueError, CancelledError) as error:
            text.set_exception(ModelError(str(error) or "the connection to the server was closed"))
            return
        with self._lock:
            self.usage.add(read_usage(answer.result()))
        if self.store is not None:
            self.store.write({key: found})
        text.set_result(found)


def _output(text: "Future[str]") -> Output:
    """The text when it is there, or its error."""
    try:
        return text.result()
    except ModelError as error:
        return error


def open_remote_text(settings: RemoteTextModelSettings) -> RemoteTextModel:
    """Open the client of a server. If no model is named, the server is asked for its model."""
    calls = HttpClient(parse_base_url(settings.url, PATHS), settings.patience, read_key(settings.key_env))
    model = detect_server(calls, settings.dialect, settings.model).model
    store = None if settings.cache is None else TextCache(Path(settings.cache).expanduser())
    return RemoteTextModel(calls, model, settings.dialect, settings.temperature, settings.seed, store)


def named_server(name: str) -> RemoteTextModelSettings | None:
    """The settings of a server named by a URL or a YAML file; `None` for another name."""
    return server_settings(name, RemoteTextModelSettings)


def server_settings(name: str, kind: type[S]) -> S | None:
    """The settings of a kind with a `url`, named by a URL or a YAML file; `None` for another name."""
    if name.startswith(("http://", "https://")):
        return make_settings(kind, {"url": name})
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        return None
    tree = read_yaml(path, "model file", "`name: value` lines, `url` among them")
    return make_settings(kind, tree, path)


def _digest(parts: list[object]) -> str:
    # ASCII: external text may hold lone surrogates, which cannot be encoded.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
