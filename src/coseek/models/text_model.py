"""Text model: models that map prompts to texts: the interface, failures of single prompts, a cache, and models here or
on a server.

A local model decodes greedily. Special tokens in a prompt are encoded as ordinary characters; only the model's chat
template adds special tokens. A server is named by

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
from concurrent.futures import CancelledError, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

from pydantic import Field

from coseek.core.cache import TextCache
from coseek.core.connections import is_url
from coseek.core.errors import ModelError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.http import HttpClient, HttpFailure
from coseek.core.settings import Settings, make_settings, merge_settings
from coseek.data.question import Question
from coseek.hardware.placement import Placement, Precision
from coseek.models.chat import chat_frame
from coseek.models.dialect import RowSegment, TurnRequest, dialect_of, why_wordless
from coseek.models.model import EpisodeState, Model, Request, Turn, TurnEnd
from coseek.models.model_folder import hidden_size, model_path
from coseek.models.remote import ServerInfo, detect_server
from coseek.models.server import (
    Prices,
    ServerSettings,
    Usage,
    check_read,
    open_client,
    read_usage,
    refused_field,
    split_settings,
    with_changes,
)
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import opened_at_end, without_reasoning

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CutText(str):
    """A text that the limit of tokens cut: its last word or number may be a part of one."""


def whole_words(text: str) -> str:
    """The text; of a `CutText` the words before the last, as a `CutText`."""
    return CutText("".join(text.rsplit(maxsplit=1)[:-1])) if isinstance(text, CutText) else text


Output: TypeAlias = str | ModelError
"""A text, or why there is none."""
_CUT_MARK = "\0"
"""Ends a cached text that was cut; no model writes it."""


def _stored_texts(texts: Mapping[str, Output]) -> dict[str, str]:
    return {key: text + _CUT_MARK * isinstance(text, CutText) for key, text in texts.items() if isinstance(text, str)}


def _restored_outputs(texts: Mapping[str, str]) -> dict[str, Output]:
    return {key: CutText(text[:-1]) if text.endswith(_CUT_MARK) else text for key, text in texts.items()}


class TextModel(Protocol):
    """Maps prompts to texts, in order; one that the limit of tokens cut is a `CutText`. A failure is a `ModelError`; a
    model that knows which prompts failed raises `PartialFailure`, which holds the texts of the others."""

    @property
    def identity(self) -> str:
        """A digest of everything besides the prompt that the texts depend on."""

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]: ...


class OutOfTokens(ModelError):
    """The tokens of a reply were used up, by reasoning, before an answer."""


class PartialFailure(ModelError):
    """Some prompts of a batch failed."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        """`outputs` holds a text or an error for every prompt, in order, and at least one error."""
        super().__init__(str(next(output for output in outputs if isinstance(output, ModelError))))
        self.outputs = list(outputs)


def texts_of(outputs: Sequence[Output]) -> list[str]:
    """The texts. Raises `PartialFailure` if one is missing."""
    texts = [output for output in outputs if isinstance(output, str)]
    if len(texts) < len(outputs):
        raise PartialFailure(outputs)
    return texts


def generate_each(model: TextModel, prompts: Sequence[str], max_tokens: int) -> list[Output]:
    """One text or error per prompt, in order. Equal prompts are sent once."""
    unique_prompts = list(dict.fromkeys(prompts))
    try:
        outputs: Sequence[Output] = model.write(unique_prompts, max_tokens) if unique_prompts else []
    except PartialFailure as error:
        outputs = error.outputs
    except ModelError as error:
        outputs = [error] * len(unique_prompts)
    by_prompt = dict(zip(unique_prompts, outputs, strict=True))
    return [by_prompt[prompt] for prompt in prompts]


@dataclass(frozen=True)
class CachedTextModel:
    """Caches the texts of a model by identity, prompt and `max_tokens`. Failures are not cached."""

    model: TextModel
    store: TextCache

    @property
    def identity(self) -> str:
        """The identity of the cached model."""
        return self.model.identity

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        keys = [digest_of(self.identity, prompt, str(max_tokens)) for prompt in prompts]
        outputs = _restored_outputs(self.store.read(list(dict.fromkeys(keys))))
        missing = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in outputs}
        if missing:
            new_outputs = dict(zip(missing, generate_each(self.model, list(missing.values()), max_tokens), strict=True))
            self.store.write(_stored_texts(new_outputs))
            outputs |= new_outputs
        return texts_of([outputs[key] for key in keys])


S = TypeVar("S", bound=Settings)


class RemoteTextModelSettings(ServerSettings):
    """A server of a text model."""

    url: str
    """The server's URL."""
    dialect: Literal["chat", "completions"] = "chat"
    """Send a prompt as the first message of a chat, or as text to complete."""
    temperature: float | None = Field(default=0.0, ge=0)
    """0 selects the most likely token; `null` sends none, for models that refuse it and use their own."""
    seed: int | None = 0
    """The seed sent to the server, for reproducible texts if the server supports it; `null` sends none."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """Tokens for reasoning, in addition to those for the answer: thousands for a reasoning model."""
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
        self._dialect = dialect_of(self.settings.dialect)
        self._path = self.served.paths.path(self._dialect.PATH)
        optional = {"temperature": self.settings.temperature, "seed": self.settings.seed}
        self._send = {**{name: None for name, value in optional.items() if value is None}, **self.settings.send}

    @property
    def temperature(self) -> float:
        """The requested temperature; 0 if none is sent."""
        return self.settings.temperature or 0.0

    @property
    def identity(self) -> str:
        """A digest of the server's URL and of everything besides the prompt that is sent."""
        settings, model = self.settings, self.served.model
        changes = [change for change in (self._send, settings.reasoning_tokens, self.served.neutral) if change]
        return _digest([self.calls.base, settings.dialect, model, self.temperature, settings.seed or 0, *changes])

    @property
    def concurrency(self) -> int:
        """Prompts that the server answers at once."""
        return self.calls.patience.concurrency

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One text per prompt, in order, each of at most `max_tokens` tokens. Failures are a `PartialFailure`.

        Equal prompts are sent once. Each text is cached as soon as it arrives.
        """
        max_tokens += self.settings.reasoning_tokens
        requests = [self._body(prompt, max_tokens) for prompt in prompts]
        keys = [_digest([self.calls.base, self._path, body]) for body in requests]
        bodies = dict(zip(keys, requests, strict=True))
        words = {key: len(prompt.split()) for key, prompt in zip(keys, prompts, strict=True)}
        outputs = {} if self.store is None else _restored_outputs(self.store.read(list(bodies)))
        calls = {self.calls.submit("POST", self._path, bodies[key]): key for key in bodies if key not in outputs}
        try:
            for call in as_completed(calls):
                key = calls[call]
                try:
                    outputs[key] = self._text(call.result(), max_tokens, words[key])
                except HttpFailure as error:
                    outputs[key] = ModelError(f"{error}{refused_field(error, bodies[key])}")
                except (ValueError, CancelledError) as error:
                    outputs[key] = ModelError(str(error) or "the connection to the server was closed")
                if self.store is not None:
                    self.store.write(_stored_texts({key: outputs[key]}))
        finally:
            for call in calls:
                call.cancel()
        return texts_of([outputs[key] for key in keys])

    def _body(self, prompt: str, max_tokens: int) -> JsonObject:
        segments, seed = (RowSegment(False, (), prompt),), self.settings.seed or 0
        request = TurnRequest(self.served.model, segments, max_tokens, (), self.temperature, seed)
        return with_changes({**self.served.neutral, **self._dialect.body(request)}, self._send)

    def _text(self, answer: JsonObject, max_tokens: int, words: int) -> Output:
        """The text in an answer. A reply without words, or to a part of the prompt's `words`, is a failure."""
        with self._lock:
            self.usage.add(tokens := read_usage(answer))
        check_read(tokens, words, words=True)
        turn = self._dialect.read(answer)
        if without_reasoning(turn.text).strip():
            return CutText(turn.text) if turn.cut_off else turn.text
        reason = why_wordless(turn, max_tokens)
        return OutOfTokens(f"{reason}; raise reasoning_tokens of its server") if turn.cut_off else ModelError(reason)


def open_remote_text(settings: RemoteTextModelSettings) -> RemoteTextModel:
    """Open the client of a server. If no model is named, the server is asked for its model."""
    calls, paths = open_client(settings.url, settings)
    server = detect_server(calls, paths, settings.dialect, settings.model)
    store = None if settings.cache is None else TextCache(Path(settings.cache))
    return RemoteTextModel(calls, server, settings, store)


def named_server(name: str) -> RemoteTextModelSettings | None:
    """The settings of a server named by a URL, which may hold settings, or a YAML file; `None` for another name."""
    return server_settings(name, RemoteTextModelSettings)


def server_settings(name: str, kind: type[S]) -> S | None:
    """Settings of the type `kind` from a URL (see `split_settings`) or a YAML file with a `url`; `None` for another
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


CUT = "\n[A part was left out here, because the whole did not fit.]\n"
"""Replaces the removed middle of a prompt that is too long."""


class TextModelSettings(Placement):
    """Limits and placement of a local model."""

    max_rows: int = Field(default=16, ge=1)
    """Texts generated at once."""
    max_context: int = Field(default=32_768, ge=16)
    """Maximum tokens of prompt and text, or the model's limit if that is less."""


@dataclass
class LocalTextModel:
    """Greedy generation. A text depends on its prompt only, not on the batch."""

    model: Model
    around: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids before and after a prompt."""
    max_context: int
    identity: str
    cut_prompts: int = 0
    """The number of prompts whose middle was removed."""
    _next_key: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self._open_mark = opened_at_end(self.model.tokenizer.decode(self.around[1]))

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One text per prompt, in order, each of at most `max_tokens` tokens. Failures are a `PartialFailure`."""
        keys = range(self._next_key, self._next_key + len(prompts))
        self._next_key += len(prompts)
        outputs: dict[int, Output] = {}
        try:
            for key, prompt in zip(keys, prompts, strict=True):
                try:
                    ids = self._framed_ids(prompt, max_tokens)
                except ModelError as error:
                    outputs[key] = error
                    continue
                self.model.start(Request(key, ids, max_tokens, seed=0, state=EpisodeState(Question(str(key), prompt))))
            while len(outputs) < len(prompts):
                for turn in self.model.step():
                    self.model.close(turn.key)
                    outputs[turn.key] = self._output(turn)
        finally:
            for key in set(keys) - outputs.keys():
                self.model.close(key)
        return texts_of([outputs[key] for key in keys])

    def holds(self, prompt: str, max_tokens: int) -> bool:
        """Whether the prompt and `max_tokens` tokens fit without truncation."""
        before, after = self.around
        return len(before) + len(self.model.tokenizer.encode_data(prompt)) + len(after) + max_tokens <= self.max_context

    def _output(self, turn: Turn) -> Output:
        """The text of a finished row, after the mark of reasoning at the end of the chat template."""
        if turn.end is TurnEnd.FAULT:
            return ModelError(turn.fault)
        ids = turn.ids[:-1] if turn.end is TurnEnd.EOS else turn.ids
        text = self._open_mark + self.model.tokenizer.decode(ids)
        if turn.end is TurnEnd.LENGTH and text.strip() and not without_reasoning(text).strip():
            return OutOfTokens(f"{len(ids)} tokens were used up before an answer; raise its limit of tokens")
        return CutText(text) if turn.end is TurnEnd.LENGTH else text

    def _framed_ids(self, prompt: str, max_tokens: int) -> tuple[int, ...]:
        """The prompt in its frame. A long prompt keeps its beginning and end, where instructions are."""
        before, after = self.around
        ids = self.model.tokenizer.encode_data(prompt)
        max_ids = self.max_context - max_tokens - len(before) - len(after)
        if len(ids) > max_ids:
            notice = self.model.tokenizer.encode_data(CUT)
            kept_count = max_ids - len(notice)
            if kept_count < 2:
                raise ModelError(
                    f"{self.max_context} tokens of context leave no room for a prompt and {max_tokens} output tokens"
                )
            ids = [*ids[: kept_count - kept_count // 2], *notice, *ids[len(ids) - kept_count // 2 :]]
            self.cut_prompts += 1
        framed = (*before, *ids, *after)
        if not framed:
            raise ModelError("the prompt is empty; a model needs at least one token")
        return framed


def open_text_model(name: str, settings: TextModelSettings | None = None) -> LocalTextModel | RemoteTextModel:
    """Open a text model: a shipped model, a Hugging Face folder, a server's URL, or its YAML file."""
    server = named_server(name)
    return open_local_text_model(model_path(name), settings) if server is None else open_remote_text(server)


def open_local_text_model(folder: Path, settings: TextModelSettings | None = None) -> LocalTextModel:
    """Open the causal language model of a Hugging Face folder as a text model. Nothing is downloaded."""
    from coseek.models.sampler import Sampler, SamplerSettings  # imports torch

    settings = settings or TextModelSettings()
    network, tokenizer, precision, context = load_local(folder, settings, settings.max_context)
    sampling = SamplerSettings(temperature=0.0, max_rows=settings.max_rows, max_tokens=context, dtype=precision)
    return LocalTextModel(
        model=Sampler(network, tokenizer, (), sampling),
        around=chat_frame(tokenizer),
        max_context=context,
        identity=f"{fingerprint(folder)}:{precision}:{context}",
    )


def load_local(
    folder: Path, placement: Placement, max_context: int
) -> tuple["PreTrainedModel", HfTokenizer, Precision, int]:
    """Load a folder's model and tokenizer. Also returns the precision, and the smaller of both context limits."""
    from coseek.models.pretrained import load_model, position_limit  # imports torch

    model = load_model(folder, placement).requires_grad_(False)
    max_positions = position_limit(model.config.get_text_config()) or max_context
    precision = placement.precision_at(hidden_size(folder))
    return model, HfTokenizer.load(folder), precision, min(max_positions, max_context)
