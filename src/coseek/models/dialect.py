"""Dialect: how a server is asked to go on with a row, and what it answered.

A module of `coseek.models.dialects` offers

    PATH                the path that requests go to
    EXACT               whether it reads ids, and gives back the ids that were sampled with their log-probabilities
    SCALED              whether these are those of the distribution that was drawn from, at any temperature
    body(ask)           the request
    read(answer)        what was written; a `ValueError` when the answer cannot be understood
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol, cast

from coseek.core import registry
from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import replace_surrogates

PACKAGE = "coseek.models.dialects"
_LEAST = -1e30
"""No token that was drawn is less likely, and every number above it is a float."""
_ROUNDING = 1e-6
"""How far above 0 a float32 log-probability may come out."""


@dataclass(frozen=True, slots=True)
class RowSegment:
    """A stretch of a row by one author."""

    by_model: bool
    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to be written."""

    model: str
    """Its name at the server."""
    parts: tuple[RowSegment, ...]
    """The row so far, beginning with the prompt."""
    max_tokens: int
    stops: tuple[str, ...]
    temperature: float
    seed: int
    """The row's seed."""

    @property
    def ids(self) -> list[int]:
        """The whole row."""
        return [ident for part in self.parts for ident in part.ids]

    @property
    def turn_seed(self) -> int:
        """31 bits for servers whose draws begin anew with each request: the same numbers must not serve every turn."""
        told = f"{self.seed}/{sum(len(part.ids) for part in self.parts)}".encode()
        return int.from_bytes(hashlib.sha256(told).digest()[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class ServerTurn:
    """What a server wrote. `ids` is `None` where it gives text only."""

    text: str
    cut_off: bool
    """The budget ended it."""
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] = ()


class Dialect(Protocol):
    """What a module of `coseek.models.dialects` offers."""

    PATH: str
    EXACT: bool
    SCALED: bool

    def body(self, ask: TurnRequest) -> JsonObject: ...

    def read(self, answer: JsonObject) -> ServerTurn: ...


def dialect_of(name: str) -> Dialect:
    """The module of a dialect."""
    return cast(Dialect, registry.find_plugin("dialect", PACKAGE, name))


def item(value: Json, *path: str | int) -> Json:
    """What stands at a path of names and places; a `ValueError` when it is not there."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            found = step in value
        else:
            found = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not found:
            raise ValueError(f"its answer has no {'.'.join(map(str, path))}")
        value = cast("dict[str | int, Json]", value)[step]
    return value


def ids_of(value: Json) -> tuple[int, ...]:
    """Token ids."""
    if not isinstance(value, list) or not all(type(ident) is int and 0 <= ident < 2**31 for ident in value):
        raise ValueError("its answer holds no token ids")
    return tuple(cast(list[int], value))


def logprobs_of(value: Json) -> tuple[float, ...]:
    """Natural logarithms of probabilities."""
    if not isinstance(value, list):
        raise ValueError("its answer holds no log-probabilities")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not _LEAST < number <= _ROUNDING:
            raise ValueError(f"its answer holds {str(number)[:40]!r} as a log-probability")
    return tuple(float(cast(float, number)) for number in value)


def text_of(value: Json) -> str:
    """Text; null is what some servers write for none. Half of a surrogate pair, which no file holds, becomes U+FFFD."""
    if value is not None and not isinstance(value, str):
        raise ValueError("its answer holds no text")
    return replace_surrogates(value or "")
