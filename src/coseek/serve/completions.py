"""Completions: requests and answers of the two OpenAI-compatible paths, as JSON. Knows neither HTTP nor the sampler.

`/v1/completions` takes text or ids, and returns the sampled ids and their log-probabilities on request, in vLLM's
fields. There is no streaming.
"""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, cast

from pydantic import ConfigDict, Field

from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, make_settings
from coseek.models.model import Turn, TurnEnd
from coseek.serve.contract import RefusedRequest
from coseek.serve.generation import SamplingKind

_ONLY: dict[str, tuple[Json, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "stream": (False,),
    "stream_options": (),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "logit_bias": ({},),
    "skip_special_tokens": (False,),
    "spaces_between_special_tokens": (False, True),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "store": (False,),
}
"""Fields of the API that are not offered → the values (besides null) that are accepted since they change nothing."""
_PASSED_OVER = ("user", "metadata")
_SENTENCE = 400
_MOST_STOPS = 64
_LONGEST_STOP = 256

_MOST_FIELDS = 100

IdList = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)]
TextList = Annotated[list[str], Field(fail_fast=True)]
"""Lists end at their first mistake, or a request of many would be answered with a sentence for each."""


class _Asked(Settings):
    """Fields of a request that both paths have."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)

    model: str | None = None
    """The name of the model that is served; may be left out."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens to write, at most."""
    temperature: float | None = Field(default=None, ge=0, le=1_000, allow_inf_nan=False)
    """0 takes the most likely token; 1 when not set."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the most likely tokens of this mass only."""
    top_k: int | None = Field(default=None, ge=-1)
    """Draw from this many most likely tokens only; 0 and -1 mean all."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    """The draw depends on it and on the row's own tokens alone. A random one when not set."""
    stop: str | TextList | None = None
    """Strings that end the text."""
    include_stop_str_in_output: bool = False
    """Keep the stop string in the text. The ids hold it in any case."""
    return_token_ids: bool | None = None
    """Return the ids of the prompt and of the generated tokens."""

    @property
    def kind(self) -> SamplingKind:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > _MOST_STOPS or not all(0 < len(stop) <= _LONGEST_STOP for stop in stops):
            raise RefusedRequest(400, f"stop holds up to {_MOST_STOPS} strings of 1 to {_LONGEST_STOP} characters")
        return SamplingKind(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            stops=tuple(dict.fromkeys(stops)),
        )

    @property
    def drawn_seed(self) -> int:
        return secrets.randbits(64) if self.seed is None else self.seed


class CompletionAsked(_Asked):
    """A request to `/v1/completions`."""

    prompt: str | TextList | IdList | Annotated[list[IdList], Field(fail_fast=True)] = Field(union_mode="left_to_right")
    """Text or ids, or a list of either. Special tokens in the text are read as such."""
    logprobs: int | None = Field(default=None, ge=0)
    """Any number returns the log-probability of each generated token; those of other tokens are not offered."""
    add_special_tokens: bool = True
    """Put the beginning-of-text token in front of text, where the tokenizer has one."""

    @property
    def prompts(self) -> list[str | list[int]]:
        """One prompt for each text to generate."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0] if self.prompt else None, int):
            return [cast("str | list[int]", self.prompt)]
        return cast("list[str | list[int]]", self.prompt)


class MessageAsked(Settings):
    """One message of a chat."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)

    role: Literal["system", "user", "assistant"]
    """The author."""
    content: str
    """The text; a special token in it is read as ordinary characters."""


class ChatAsked(_Asked):
    """A request to `/v1/chat/completions`."""

    messages: Annotated[list[MessageAsked], Field(fail_fast=True)] = Field(min_length=1)
    """The chat so far."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Another name of `max_tokens`."""
    logprobs: bool | None = None
    """Return the log-probability of each generated token."""
    top_logprobs: Literal[0] | None = None
    """Log-probabilities of other tokens are not offered."""


class WeightsAsked(Settings):
    """A request to `/update_weights_from_disk`, in SGLang's fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, strict=True)

    model_path: str = Field(min_length=1)
    """A model folder; a relative one is below the folder that the service loads from."""
    weight_version: int | str | None = None
    """Returned with every text that these weights generate."""


A = TypeVar("A", CompletionAsked, ChatAsked, WeightsAsked)


def read_asked(kind: type[A], body: bytes) -> A:
    """Read a request. Raises `RefusedRequest` (400) for anything that is not offered."""
    try:
        row = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "the request is not JSON in UTF-8") from None
    if not isinstance(row, dict):
        raise RefusedRequest(400, "the request is a JSON object")
    if len(row) > _MOST_FIELDS:
        raise RefusedRequest(400, f"the request has {len(row)} fields, and at most {_MOST_FIELDS} are read")
    if b"\\u" in body:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise RefusedRequest(400, "the request holds half of a surrogate pair, which is no text") from None
    for name, neutral in _ONLY.items():
        value = row.pop(name, None)
        if value is not None and value not in neutral:
            raise RefusedRequest(400, f"{name} = {_short(value)} is not offered here; leave it out")
    try:
        return make_settings(kind, {name: value for name, value in row.items() if name not in _PASSED_OVER})
    except SettingError as error:
        raise RefusedRequest(400, str(error)[:_SENTENCE]) from None


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A generated text, as answers need it."""

    turn: Turn
    pieces: tuple[str, ...]
    """Each token decoded by itself."""
    text: str
    """All tokens decoded together, without the end-of-text token."""
    stop: str | None
    """The stop string that ended it."""
    prompt_ids: tuple[int, ...]
    version: int | str | None = None
    """The version of the weights that generated it."""

    @property
    def finish(self) -> JsonObject:
        return {"finish_reason": "length" if self.turn.end is TurnEnd.LENGTH else "stop", "stop_reason": self.stop}

    def shown(self, with_stop: bool) -> str:
        """The text up to its stop string, or including it."""
        if self.stop is None:
            return self.text
        end = self.text.find(self.stop)
        # Including it means with the whole last token, which may be longer, so that text and ids agree.
        return self.text if with_stop else self.text[:end]


def completion(asked: CompletionAsked, model: str, told: Sequence[WrittenText]) -> JsonObject:
    """The answer of `/v1/completions`."""
    choices: list[Json] = []
    for index, one in enumerate(told):
        choice: JsonObject = {"index": index, "text": one.shown(asked.include_stop_str_in_output), **one.finish}
        choice["logprobs"] = None
        if asked.logprobs is not None:
            choice["logprobs"] = {
                "tokens": [*one.pieces],
                "token_logprobs": [*one.turn.logprobs],
                "top_logprobs": None,
            }
        if asked.return_token_ids:
            choice |= {"token_ids": [*one.turn.ids], "prompt_token_ids": [*one.prompt_ids]}
        choices.append(choice)
    return _answer("cmpl", "text_completion", model, choices, told)


def chat_completion(asked: ChatAsked, model: str, one: WrittenText) -> JsonObject:
    """The answer of `/v1/chat/completions`."""
    content = one.shown(asked.include_stop_str_in_output)
    choice: JsonObject = {"index": 0, "message": {"role": "assistant", "content": content}, **one.finish}
    choice["logprobs"] = None
    if asked.logprobs:
        pairs = zip(one.pieces, one.turn.logprobs, strict=True)
        rows: list[Json] = [
            {"token": piece, "logprob": logprob, "bytes": None, "top_logprobs": []} for piece, logprob in pairs
        ]
        choice["logprobs"] = {"content": rows}
    if asked.return_token_ids:
        choice |= {"token_ids": [*one.turn.ids], "prompt_token_ids": [*one.prompt_ids]}
    return _answer("chatcmpl", "chat.completion", model, [choice], [one])


def _answer(kind: str, name: str, model: str, choices: list[Json], told: Sequence[WrittenText]) -> JsonObject:
    read, written = sum(len(one.prompt_ids) for one in told), sum(len(one.turn.ids) for one in told)
    usage: JsonObject = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    ident = f"{kind}-{secrets.token_hex(12)}"
    versions = {one.version for one in told} - {None}
    version: JsonObject = {"weight_version": versions.pop()} if len(versions) == 1 else {}
    return {
        **version,
        "id": ident,
        "object": name,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage,
    }


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
