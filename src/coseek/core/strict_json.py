"""Strict JSON: no NaN, infinities, numbers beyond a float, lone surrogates or deep nesting, which Python accepts.

A user's file with any of these is refused (`parse_strict`, five times as fast as Python's `json`). Lone surrogates in
the output of servers and models are replaced (`parse_lenient`).
"""

import json
import math
import re
from collections.abc import Iterator
from typing import TypeAlias, cast

from pydantic_core import from_json

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
Place: TypeAlias = "tuple[str | int, ...]"
"""Keys and positions that lead to a value."""

DEEPEST = 100
"""Nesting limit; Python's own depends on the caller's stack."""
_CONTAINERS = frozenset((list, dict))
_HALF = re.compile("[\ud800-\udfff]")
"""A lone surrogate, which UTF-8 cannot encode."""
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_PLACED = re.compile(r"(.*) at line (\d+) column (\d+)", re.DOTALL)
_ODD = re.compile(r"[:,\[]\s*-?(?:NaN|Infinity)")
_LARGE = re.compile(r"[0-9][eE]\+?[0-9]{3}|[0-9]{309}")
"""A number that may be beyond a float."""


class InvalidJson(ValueError):
    """Refused JSON; the message is a sentence, perhaps without a subject."""

    def __init__(self, sentence: str, line: int | None = None) -> None:
        super().__init__(sentence)
        self.line = line
        """From 1, where the reader gives it."""


def parse_strict(text: str) -> Json:
    """The value of a JSON text. Raises `InvalidJson`. The last one of repeated keys counts."""
    try:
        value = cast(Json, from_json(text, allow_inf_nan=False))
    except ValueError as error:
        said, line, column = _PLACED.fullmatch(str(error)).groups()  # type: ignore[union-attr]
        odd = "; there are no NaN and Infinity in JSON" if _ODD.search(text) else ""
        why = _TOO_DEEP if "recursion" in said else f"not valid JSON ({said} at character {column}{odd})"
        raise InvalidJson(why, int(line)) from None
    except TypeError:
        raise InvalidJson("it holds half of a surrogate pair, which is no text") from None
    if _may_be_deep(text) and is_deep(value):
        raise InvalidJson(_TOO_DEEP)
    if _LARGE.search(text) and (fault := fault_in(value)):
        raise InvalidJson(fault)
    return value


def parse_lenient(text: str | bytes) -> Json:
    """The value of another program's JSON text (a server's, a model's, a model folder's), with U+FFFD for lone
    surrogates. NaN, infinities and repeated keys are accepted.

    Raises `InvalidJson` for text that is no JSON or nested too deeply.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), errors="surrogatepass")
        value = cast(Json, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidJson(_why(error), getattr(error, "lineno", None)) from None
    if _may_be_deep(text) and is_deep(value):
        raise InvalidJson(_TOO_DEEP)
    return _mended(value) if _ESCAPED_HALF.search(text) or _HALF.search(text) else value


def parse_lenient_values(text: str) -> list[Json]:
    """The values of a model's text that holds several, between which are blanks, `,` or `;`: see `parse_lenient`."""
    values: list[Json] = []
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n,;":
            at += 1
            continue
        try:
            _, end = _LENIENT.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InvalidJson(_why(error)) from None
        values.append(parse_lenient(text[at:end]))
        at = end
    return values


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for every lone surrogate."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def fault_in(value: Json) -> str:
    """Why a value is no strict JSON; empty when it is."""
    if fault := text_fault_in(value):
        return fault
    if (place := next(_not_finite(value), None)) is not None:
        return f"{_named(place)} is not a finite number"
    return ""


def text_fault_in(value: Json) -> str:
    """Why a value's texts or depth are no strict JSON; empty when they are. Numbers are not checked."""
    if is_deep(value):
        return _TOO_DEEP
    found = next(_halves(value), None)
    return "" if found is None else _half_sentence(*found)


def is_deep(value: object, deepest: int = DEEPEST) -> bool:
    """Whether lists and objects nest more than `deepest` deep; true for a value that contains itself."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(deepest):
        inner = [each for one in level for each in _inside(one) if type(each) in _CONTAINERS]
        level = list({id(each): each for each in inner}.values())  # a YAML alias may repeat one list many times
        if not level:
            return False
    return bool(level)


def is_json(text: str | bytes) -> bool:
    """Whether a text is one JSON value, and not a part of one."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_LENIENT = json.JSONDecoder()
_TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def _why(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error.msg})"
    return _TOO_DEEP if isinstance(error, RecursionError) else "it holds a number of thousands of digits"


def _may_be_deep(text: str) -> bool:
    return text.count("[") + text.count("{") > DEEPEST


def _inside(value: object) -> "list[object] | Iterator[object]":
    if isinstance(value, dict):
        return iter(value.values())
    return value if isinstance(value, list) else []


def _walk(value: Json) -> Iterator[tuple[Place, Json]]:
    """Every value and key with its place, in the order of the text; YAML aliases are visited once."""
    left: list[tuple[Place, Json]] = [((), value)]
    met: set[int] = set()
    while left:
        place, one = left.pop()
        if isinstance(one, list | dict):
            if id(one) in met:
                continue
            met.add(id(one))
        yield place, one
        if isinstance(one, dict):
            for key, each in reversed(one.items()):
                left += [((*place, key), each), ((*place, key), key)]
        elif isinstance(one, list):
            left += [((*place, at), each) for at, each in reversed(list(enumerate(one)))]


def _halves(value: Json) -> Iterator[tuple[Place, str]]:
    for place, one in _walk(value):
        if isinstance(one, str) and (half := _HALF.search(one)):
            yield place, half[0]


def _not_finite(value: Json) -> Iterator[Place]:
    return (place for place, one in _walk(value) if isinstance(one, float) and not math.isfinite(one))


def _half_sentence(place: Place, half: str) -> str:
    return f"{_named(place)} holds half of a surrogate pair ({half!r}), which is no text"


def _named(place: Place) -> str:
    """`meta.scores[2]`"""
    names = "".join(f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in place)
    return f"the field '{names.removeprefix('.')}'" if place else "the value"


def _shown(key: str) -> str:
    return key.encode("utf-8", errors="backslashreplace").decode()[:60]


def _mended(value: Json) -> Json:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): _mended(one) for key, one in value.items()}
    return value
