"""Dialect: the interface of request formats of model servers.

A module of `coseek.models.dialects` defines

    PATH                the path of requests
    EXACT               whether it takes ids, and returns the sampled ids with log-probabilities
    SCALED              whether log-probabilities are those at the sampling temperature
    body(request)       the JSON body of a request
    read(answer)        the turn; a `ValueError` for an answer of another form

and, if it returns exact log-probabilities of a prompt's own tokens,

    prompt_body(request)            the JSON body of a request
    read_prompt(answer, request)    the log-probabilities; a `ValueError` for an answer of another form or to other ids

and, if new weights can be loaded while it serves,

    ADAPTERS                    whether it loads LoRA adapters, each under a separate model name
    update_calls(update)        the requests that load them
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import Protocol, cast, runtime_checkable

from coseek.core import plugins
from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import replace_surrogates
from coseek.models.written import ToolCallText

PACKAGE = "coseek.models.dialects"
FULL_SOFTMAX: JsonObject = {
    **{"top_p": 1.0, "top_k": -1, "min_p": 0.0},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
"""Fields of vLLM and SGLang that sample from the full softmax."""
ENDED = ("stop", "eos", "eos_token", "stop_sequence", "end_turn")
"""Finish reasons of turns that the model or a stop string ended."""
CUT = ("length", "max_tokens", "model_length", "max_output_tokens")
"""Finish reasons of turns that the token limit ended."""
CALLED = ("tool_calls", "function_call", "tool_use")
"""Finish reasons of turns that a tool call ended."""
_MIN_LOGPROB = -1e30
"""Lower bound of a sampled token's log-probability."""
_ROUNDING = 1e-6
"""Tolerance of a float32 log-probability above 0."""


def turn_seed(seed: int, read: int) -> int:
    """A 31-bit seed per turn, for servers that restart their random numbers with each request; `read` is the number of
    tokens before it."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{read}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Consecutive tokens of a row by one author."""

    by_model: bool
    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A request for one turn."""

    model: str
    """The model's name at the server."""
    segments: tuple[RowSegment, ...]
    max_tokens: int
    stops: tuple[str, ...]
    temperature: float
    seed: int
    tools: tuple[JsonObject, ...] = ()
    """Schemas of the tools in the request."""
    reasoning_field: str = "reasoning_content"
    """The field of a message in which the server accepts its model's earlier reasoning."""

    @property
    def ids(self) -> list[int]:
        """The ids of the whole row."""
        return [ident for segment in self.segments for ident in segment.ids]

    @property
    def turn_seed(self) -> int:
        return turn_seed(self.seed, sum(len(segment.ids) for segment in self.segments))


@dataclass(frozen=True, slots=True)
class ServerTurn:
    """A server's output. `ids` is `None` if it returns text only."""

    text: str
    cut_off: bool
    """Whether `max_tokens` ended it."""
    reasoning: str = ""
    """Reasoning that the server returns separate from the text."""
    reasoning_field: str = ""
    """The field of the message with the reasoning, `content` for reasoning in the text; "" for any other."""
    calls: tuple[ToolCallText, ...] = ()
    """Tool calls that the server removed from the text."""
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] = ()
    version: int | None = None
    """The version of the weights that sampled it, if the server states a number."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New weights for a server."""

    folder: str
    """The model folder, at a path that the server can read."""
    version: int
    adapter: str | None = None
    """The folder of a LoRA adapter with all changed weights."""
    run: str = ""
    """Distinguishes the versions of two trainings, also those of one that was resumed."""

    @property
    def name(self) -> str:
        """The adapter's name at the server: a new one for each version, so that no cache of an older one is used."""
        return f"coseek-{self.run}-{self.version}"


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A POST request of a weight update."""

    path: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A request for the log-probabilities of a prompt's tokens from `start` ≥ 1 on."""

    model: str
    ids: tuple[int, ...]
    start: int

    @property
    def scored(self) -> tuple[int, ...]:
        """The ids with log-probabilities."""
        return self.ids[self.start :]


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities (natural log, at temperature 1) of the scored ids, and the server's text of these ids."""

    logprobs: tuple[float, ...]
    text: str


class Dialect(Protocol):
    """The interface of a dialect module."""

    PATH: str
    EXACT: bool
    SCALED: bool

    def body(self, request: TurnRequest) -> JsonObject: ...

    def read(self, answer: JsonObject) -> ServerTurn: ...


@runtime_checkable
class PromptDialect(Dialect, Protocol):
    """The interface of a dialect module with log-probabilities of prompts."""

    def prompt_body(self, request: PromptRequest) -> JsonObject: ...

    def read_prompt(self, answer: JsonObject, request: PromptRequest) -> PromptScores: ...


@runtime_checkable
class WeightDialect(Dialect, Protocol):
    """The interface of a dialect module whose servers load new weights."""

    ADAPTERS: bool

    def update_calls(self, update: WeightUpdate) -> list[ServerCall]: ...


@cache
def dialect_of(name: str) -> Dialect:
    """The module of a dialect."""
    return cast(Dialect, plugins.find_plugin("dialect", PACKAGE, name))


def version_of(value: Json) -> int | None:
    """A version of weights: a number, or one as text; `None` for any other."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if type(value) is int else None


def item(value: Json, *path: str | int) -> Json:
    """The value at a path of keys and indices; a `ValueError` if it is missing."""
    for key in path:
        if isinstance(value, dict) and isinstance(key, str):
            exists = key in value
        else:
            exists = isinstance(value, list) and isinstance(key, int) and key < len(value)
        if not exists:
            raise ValueError(f"its answer has no {'.'.join(map(str, path))}")
        value = cast("dict[str | int, Json]", value)[key]
    return value


def choice_of(answer: JsonObject) -> JsonObject:
    """The first choice of an answer. Raises `ValueError` for an error in it or in the answer: text before an error is
    not a turn."""
    choice = item(answer, "choices", 0)
    if not isinstance(choice, dict):
        raise ValueError("its answer holds no message")
    if error := choice.get("error") or answer.get("error"):
        message = error.get("message", error) if isinstance(error, dict) else error
        raise ValueError(f"it answered: {message if isinstance(message, str) else json.dumps(message):.200}")
    return choice


def is_cut_off(finish: Json, text: str, calls: bool = False) -> bool:
    """Whether `max_tokens` ended a turn, by the server's finish reason; `calls`: it has tool calls. Raises `ValueError`
    for a turn that the server ended (`abort`, `error`, `content_filter`)."""
    reason = finish.lower() if isinstance(finish, str) else finish
    if reason in ENDED or (calls and reason in CALLED):
        return False
    if reason in (None, "") and (text or calls):  # some servers give no reason
        return False
    if reason in CUT:
        return True
    way_out = "; start the server without its tool parser" if reason in CALLED else ""
    raise ValueError(f"it ended the turn by {str(finish)[:40]!r}{way_out}")


def why_wordless(turn: ServerTurn, max_tokens: int) -> str:
    """The reason why a reply has no words."""
    if turn.cut_off:
        return f"{max_tokens} tokens were used up before an answer"
    if turn.calls:
        return f"it answered with a call of the tool {turn.calls[0].name!r} instead of words"
    return "it wrote reasoning and no answer" if turn.reasoning or turn.text else "it wrote no words"


def ids_of(value: Json) -> tuple[int, ...]:
    """Check and return token ids."""
    if not isinstance(value, list) or not all(type(ident) is int and 0 <= ident < 2**31 for ident in value):
        raise ValueError("its answer holds no token ids")
    return tuple(cast(list[int], value))


def logprobs_of(value: Json) -> tuple[float, ...]:
    """Check and return log-probabilities (natural log)."""
    if not isinstance(value, list):
        raise ValueError("its answer holds no log-probabilities")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not _MIN_LOGPROB < number <= _ROUNDING:
            raise ValueError(f"its answer holds {str(number)[:40]!r} as a log-probability")
    return tuple(float(cast(float, number)) for number in value)


def text_of(value: Json) -> str:
    """Check and return text. Null is empty; lone surrogates become U+FFFD."""
    if value is not None and not isinstance(value, str):
        raise ValueError("its answer holds no text")
    return replace_surrogates(value or "")
