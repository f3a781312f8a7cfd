"""Server: shared by all clients of model servers: settings, address, request fields, refused fields, usage."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, cast
from urllib.parse import quote, unquote

from pydantic import Field, field_validator

from coseek.core.connections import parse_base_url
from coseek.core.files import Json, JsonObject
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, read_key
from coseek.core.settings import MayChange, Settings, VariableName, apply_overrides

_VERSION = "/v1"
"""The usual prefix of paths."""
_ENDS = ("/chat/completions", "/completions")
"""Path endings that users copy from a server's documentation; the part before is used unchanged."""
_OWN_VERSION = re.compile(r"/v[0-9]+(?:alpha|beta)?[0-9]*(?=/|$)")
_REFUSALS = (400, 404, 422)
_INPUT = ("model", "messages", "prompt", "input_ids", "tools")
_LONGEST_WAIT_S = 90.0
"""Limits of model servers are often by the minute."""
_MIN_READ_SHARE = 0.75
"""Minimum share of what was sent that a server must have read; a related model's tokenizer counts about as many."""
_COUNT_TOLERANCE = 64
"""Tokens by which counts may differ."""
_FEW_WORDS = 256
_RENAMES = {"max_tokens": "max_completion_tokens"}
"""Newer names of fields."""


_FULL: JsonObject = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
NEUTRAL: Mapping[str, JsonObject] = {
    "vllm": _FULL,
    "sglang": _FULL,
    "llamacpp": {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
    "organization_owner": {"repeat_penalty": 1.0},  # LM Studio
}
"""Owner in a server's model list → fields that reset the model's own generation settings: a repetition penalty changes
greedy decoding. Requests with ids always have these fields."""
FIXED: Mapping[str, str] = {
    "library": (
        "Ollama adds the repetition penalty of the model's Modelfile, which no request can change: for greedy decoding "
        "set `PARAMETER repeat_penalty 1.0` there"
    )
}
"""Owner → a warning of a server setting that no request can reset."""


class ServerSettings(Settings):
    """Requests to a model server."""

    model: str | None = None
    """The model's name at the server; optional if it has only one."""
    key_env: Annotated[VariableName | None, MayChange()] = None
    """The environment variable with the server's key, which is never stored."""
    send: dict[str, object] = Field(default={})
    """Changes of the request's fields, by name: `null` omits a field (`seed: null`), a name renames it (`max_tokens:
    max_completion_tokens`), another value replaces it, and a field that is not sent otherwise is added
    (`reasoning_effort: low`)."""
    patience: Annotated[HttpSettings, MayChange()] = Field(default=HttpSettings(longest_wait_s=_LONGEST_WAIT_S))
    """Concurrency, timeouts and retries of calls. `longest_wait_s` is 90 by default."""

    @field_validator("patience", mode="before")
    @classmethod
    def _wait_for_the_next_minute(cls, patience: object) -> object:
        return {"longest_wait_s": _LONGEST_WAIT_S, **patience} if isinstance(patience, dict) else patience


def split_settings(url: str) -> tuple[str, JsonObject]:
    """Split a server's URL from the settings after its `#`, which are never sent.

    `http://HOST#model=qwen3:8b&send.seed=null` gives the URL and `{model: qwen3:8b, send: {seed: null}}`. Values are
    YAML; `&`, `#` and `%` are percent-encoded. Raises `SettingError`.
    """
    url, _, settings = url.partition("#")
    return url, apply_overrides({}, [unquote(part) for part in settings.split("&") if part], ServerSettings)


def with_settings(url: str, settings: JsonObject) -> str:
    """Append settings of one level (`{"model": …, "send.seed": None}`) to a URL, for `split_settings`."""
    texts = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
    quoted_texts = [quote(text, safe='=:/" ') for text in texts]
    return f"{url}{'&' if '#' in url else '#'}{'&'.join(quoted_texts)}" if quoted_texts else url


@dataclass(frozen=True, slots=True)
class ServerPaths:
    """The address of a server, and the prefix of its paths."""

    base: str
    version: str = _VERSION

    @classmethod
    def of(cls, url: str) -> "ServerPaths":
        """Parse a URL: of a server (`http://HOST:PORT`, with or without `/v1`), of an API with another version prefix
        (`https://HOST/api/paas/v4`), or the full URL of its requests (`…/chat/completions`)."""
        base = parse_base_url(url, ("/generate",))
        for end in _ENDS:
            if base.endswith(end):
                base = base.removesuffix(end)
                return cls(base.removesuffix(_VERSION), _VERSION) if base.endswith(_VERSION) else cls(base, "")
        if base.endswith(_VERSION):
            return cls(base.removesuffix(_VERSION))
        return cls(base, "" if _OWN_VERSION.search(base) else _VERSION)

    def path(self, usual: str) -> str:
        """This server's path for one that usually begins with `/v1`."""
        return self.version + usual.removeprefix(_VERSION) if usual.startswith(_VERSION) else usual


def open_client(url: str, settings: ServerSettings) -> tuple[HttpClient, ServerPaths]:
    """The client of a server, and its paths. Sends nothing yet."""
    paths = ServerPaths.of(url)
    key = read_key(settings.key_env) if settings.key_env else None
    return HttpClient(paths.base, settings.patience, key), paths


def with_changes(body: JsonObject, send: Mapping[str, object]) -> JsonObject:
    """The body of a request with the changes of `ServerSettings.send`."""
    changed_fields: JsonObject = {}
    for name, value in body.items():
        replacement = cast(Json, send.get(name, value))
        if name in send and isinstance(replacement, str) and not isinstance(value, str):
            changed_fields[replacement] = value
        elif name not in send or replacement is not None:
            changed_fields[name] = replacement
    added_fields = {name: cast(Json, value) for name, value in send.items() if name not in body and value is not None}
    return {**changed_fields, **added_fields}


def refused_field(error: HttpFailure, fields: Iterable[str]) -> str:
    """The setting that omits, renames or replaces the first of a request's `fields` that a server's refusal names, as
    the end of an error message; "" for another error."""
    if error.status not in _REFUSALS:
        return ""
    message = str(error).partition('"input"')[0]  # pydantic repeats the whole request there
    names = {name.lower(): name for name in fields if name not in _INPUT}
    any_name = "|".join(map(re.escape, names)) or "(?!)"
    # The name may stand in quotes, brackets, or between Chinese characters, but not inside another name.
    match = re.search(rf"(?<![A-Za-z0-9_])(?:{any_name})(?![A-Za-z0-9_])", message, re.I)
    if match is None:
        return ""
    name = names[match[0].lower()]
    # vLLM names both names where the value is too large.
    if (new_name := _RENAMES.get(name, "")) and new_name in message and "too large" not in message:
        return f"; rename the field with `send: {{{name}: {new_name}}}` in the server's settings"
    return f"; omit the field with `send: {{{name}: null}}` in the server's settings, or send another value there"


class Prices(Settings):
    """Prices of tokens in US dollars per million."""

    read: float = Field(default=0.0, ge=0)
    """Tokens of prompts."""
    written: float = Field(default=0.0, ge=0)
    """Tokens of answers."""

    def of(self, tokens: tuple[int, int] | None) -> float | None:
        """The cost in dollars of (read, written) tokens; `None` if there is a price and no count."""
        if not (self.read or self.written):
            return 0.0
        return None if tokens is None else (tokens[0] * self.read + tokens[1] * self.written) / 1_000_000


@dataclass
class Usage:
    """Sums of the server's token counts."""

    answers: int = 0
    uncounted: int = 0
    """Answers without token counts."""
    read_tokens: int = 0
    written_tokens: int = 0

    def add(self, counted: tuple[int, int] | None) -> None:
        """Add an answer with its (read, written) tokens."""
        self.answers += 1
        if counted is None:
            self.uncounted += 1
        else:
            self.read_tokens += counted[0]
            self.written_tokens += counted[1]

    def cost_usd(self, prices: Prices) -> float:
        """The cost in dollars of the counted tokens."""
        return prices.of((self.read_tokens, self.written_tokens)) or 0.0


def read_usage(answer: JsonObject) -> tuple[int, int] | None:
    """The (read, written) tokens in the `usage` of an OpenAI-compatible answer; `None` if missing."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    read_tokens, written_tokens, total = (usage.get(f"{part}_tokens") for part in ("prompt", "completion", "total"))
    if type(read_tokens) is not int or type(written_tokens) is not int or read_tokens < 0 or written_tokens < 0:
        return None
    # Gemini and xAI count hidden reasoning, which is paid for, in the total alone.
    return read_tokens, max(written_tokens, total - read_tokens) if type(total) is int else written_tokens


def check_read(tokens: tuple[int, int] | None, sent: int, words: bool = False) -> None:
    """Raise `ValueError` if a server read much less than was `sent`: some truncate long prompts silently. `tokens` are
    those of `read_usage`; `sent` are tokens or words. A word takes a token or more, and a few fit every context, so
    that the bound is lower for words."""
    share = _MIN_READ_SHARE * sent
    min_tokens = min(share - _COUNT_TOLERANCE, sent - _FEW_WORDS) if words else min(share, sent - _COUNT_TOLERANCE)
    if tokens is not None and 0 < tokens[0] < min_tokens:
        raise ValueError(
            f"it read {tokens[0]} tokens of the {sent} {'words' if words else 'tokens'} that were sent; raise the "
            "server's context (num_ctx of Ollama, --ctx-size of llama.cpp), or send less (limit max_tokens, --budget)"
        )
