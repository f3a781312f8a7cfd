"""Remote text: a text model behind HTTP, with a cache of texts.

    url: https://api.example.org      # a server with `/v1/chat/completions`
    model: its-name
    key_env: EXAMPLE_KEY              # the environment variable with the key
    cache: texts.sqlite               # created if missing

The cache key of a text is everything that was sent for it. Failures are not cached.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from coseek.core.cache import TextCache
from coseek.core.errors import ModelError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, parse_base_url, read_key
from coseek.core.settings import Settings, make_settings
from coseek.models.dialect import RowSegment, TurnRequest, dialect_of
from coseek.models.remote import PATHS, detect_server
from coseek.models.usage import Prices, Usage, read_usage


class RemoteTextModelSettings(Settings):
    """A server of a text model."""

    url: str
    """The server's URL."""
    dialect: Literal["chat", "completions"] = "chat"
    """Send a prompt as the first message of a chat, or as text to complete."""
    model: str | None = None
    """The model's name at the server; optional if it has only one."""
    key_env: str | None = None
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
    """Generates texts on a server, concurrently."""

    calls: HttpClient
    model: str
    dialect: str
    temperature: float = 0.0
    seed: int = 0
    store: TextCache | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def identity(self) -> str:
        """A digest of the server's URL and of everything besides the prompt that is sent."""
        return _digest([self.calls.base, self.dialect, self.model, self.temperature, self.seed])

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One text per prompt, in order, each of at most `max_tokens` tokens. A failure is a `ModelError`. Equal
        prompts are sent once. If some fail, the texts of the others are cached."""
        speech = dialect_of(self.dialect)
        bodies = [speech.body(self._ask(prompt, max_tokens)) for prompt in prompts]
        keys = [_digest([self.calls.base, speech.PATH, body]) for body in bodies]
        texts = (self.store.read(list(dict.fromkeys(keys))) if self.store is not None else None) or {}
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in texts}
        self.usage.remembered += len(texts)
        fresh, fault = self._asked(speech.PATH, missing)
        if self.store is not None and fresh:
            self.store.write(fresh)
        if fault is not None:
            raise ModelError(fault)
        texts |= fresh
        return [texts[key] for key in keys]

    def _ask(self, prompt: str, max_tokens: int) -> TurnRequest:
        return TurnRequest(self.model, (RowSegment(False, (), prompt),), max_tokens, (), self.temperature, self.seed)

    def _asked(self, path: str, bodies: Mapping[str, JsonObject]) -> tuple[dict[str, str], str | None]:
        """The texts received, and the first fault."""
        speech = dialect_of(self.dialect)
        fault: str | None = None
        texts: dict[str, str] = {}
        futures = {key: self.calls.submit("POST", path, body) for key, body in bodies.items()}
        try:
            for key, future in futures.items():
                try:
                    answer = future.result()
                    texts[key] = speech.read(answer).text
                    self.usage.add(read_usage(answer))
                except (HttpFailure, ValueError, CancelledError) as error:
                    fault = fault or str(error) or "the connection to the server was closed"
        finally:
            for future in futures.values():
                future.cancel()
        return texts, fault


def open_remote_text(settings: RemoteTextModelSettings) -> RemoteTextModel:
    """Open the client of a server. If no model is named, the server is asked for its model."""
    calls = HttpClient(parse_base_url(settings.url, PATHS), settings.patience, read_key(settings.key_env))
    model = detect_server(calls, settings.dialect, settings.model).model
    store = None if settings.cache is None else TextCache(Path(settings.cache).expanduser())
    return RemoteTextModel(calls, model, settings.dialect, settings.temperature, settings.seed, store)


def named_server(name: str) -> RemoteTextModelSettings | None:
    """The settings of a server named by a URL or a YAML file; `None` for another name."""
    if name.startswith(("http://", "https://")):
        return RemoteTextModelSettings(url=name)
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        return None
    tree = read_yaml(path, "model file", "`name: value` lines, `url` among them")
    return make_settings(RemoteTextModelSettings, tree, path)


def _digest(parts: list[object]) -> str:
    # ASCII: external text may hold lone surrogates, which cannot be encoded.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
