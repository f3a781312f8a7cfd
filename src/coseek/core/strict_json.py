"""Strict JSON: no NaN, infinities, numbers beyond a float, lone surrogates or deep nesting, which Python accepts.

`parse_strict` refuses them in a user's file, five times as fast as Python's `json`. `parse_lenient` replaces lone
surrogates in the output of servers and models.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import TypeAlias, cast

from pydantic_core import from_json

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
Place: TypeAlias = "tuple[str | int, ...]"
"""Path of a value: keys and positions."""

DEEPEST = 100
"""Nesting limit. Python's own depends on the caller's stack."""
_CONTAINERS = frozenset((list, dict))
_HALF = re.compile("[\ud800-\udfff]")
"""A lone surrogate, which UTF-8 cannot encode."""
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_PLACED = re.compile(r"(.*) at line (\d+) column (\d+)", re.DOTALL)
_ODD = re.compile(r"[:,\[]\s*-?(?:NaN|Infinity)")
_LARGE = re.compile(r"[0-9][eE]\+?[0-9]{3}|[0-9]{309}")
"""A number that may be beyond a float."""


class InvalidText(ValueError):
    """A text that cannot be parsed. The message is a sentence, perhaps without a subject."""

    def __init__(self, sentence: str, line: int | None = None) -> None:
        super().__init__(sentence)
        self.line = line
        """From 1; `None` if unknown."""


class InvalidJson(InvalidText):
    """Refused JSON."""


def parse_strict(text: str) -> Json:
    """Parse a JSON text. Of repeated keys the last wins. Raises `InvalidJson`."""
    try:
        value = cast(Json, from_json(text, allow_inf_nan=False))
    except ValueError as error:
        complaint, line, column = _PLACED.fullmatch(str(error)).groups()  # type: ignore[union-attr]
        hint = "; there are no NaN and Infinity in JSON" if _ODD.search(text) else ""
        message = _TOO_DEEP if "recursion" in complaint else f"not valid JSON ({complaint} at character {column}{hint})"
        raise InvalidJson(message, int(line)) from None
    except TypeError:
        raise InvalidJson("it holds half of a surrogate pair, which is no text") from None
    if _may_be_deep(text) and is_deep(value):
        raise InvalidJson(_TOO_DEEP)
    if _LARGE.search(text) and (fault := fault_in(value)):
        raise InvalidJson(fault)
    return value


def parse_lenient(text: str | bytes) -> Json:
    """Parse JSON of another program (a server, a model, a model folder). Lone surrogates become U+FFFD; NaN, infinities
    and repeated keys are accepted.

    Raises `InvalidJson` if the text is not JSON or nested too deeply.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), errors="surrogatepass")
        value = cast(Json, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidJson(_reason_of(error), getattr(error, "lineno", None)) from None
    if _may_be_deep(text) and is_deep(value):
        raise InvalidJson(_TOO_DEEP)
    return _without_surrogates(value) if _ESCAPED_HALF.search(text) or _HALF.search(text) else value


def parse_lenient_values(text: str) -> list[Json]:
    """Parse a model's text of several values, separated by blanks, `,` or `;`, as `parse_lenient` does."""
    values: list[Json] = []
    position = 0
    while position < len(text):
        if text[position] in " \t\r\n,;":
            position += 1
            continue
        try:
            _, end = _LENIENT.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise InvalidJson(_reason_of(error)) from None
        values.append(parse_lenient(text[position:end]))
        position = end
    return values


def replace_surrogates(text: str) -> str:
    """Replace every lone surrogate by U+FFFD."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def fault_in(value: Json) -> str:
    """Why a value is not strict JSON; empty if it is."""
    infinite = (place for place, part in _walk(value) if isinstance(part, float) and not math.isfinite(part))
    return text_fault_in(value) or next((f"{_describe_place(place)} is not a finite number" for place in infinite), "")


def text_fault_in(value: Json) -> str:
    """Why the texts or the depth of a value are not strict JSON; empty if they are. Numbers are not checked."""
    if is_deep(value):
        return _TOO_DEEP
    for place, part in _walk(value):
        if isinstance(part, str) and (half := _HALF.search(part)):
            return f"{_describe_place(place)} holds half of a surrogate pair ({half[0]!r}), which is no text"
    return ""


def is_deep(value: object, deepest: int = DEEPEST) -> bool:
    """Whether lists and objects are nested more than `deepest` levels deep; true for a value that contains itself."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(deepest):
        children = [child for parent in level for child in _children(parent) if type(child) in _CONTAINERS]
        level = list({id(child): child for child in children}.values())  # a YAML alias may repeat one list many times
        if not level:
            return False
    return bool(level)


def is_json(text: str | bytes) -> bool:
    """Whether a text is one whole JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_LENIENT = json.JSONDecoder()
_TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def _reason_of(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error.msg})"
    return _TOO_DEEP if isinstance(error, RecursionError) else "it holds a number of thousands of digits"


def _may_be_deep(text: str) -> bool:
    return text.count("[") + text.count("{") > DEEPEST


def _children(value: object) -> "list[object] | Iterator[object]":
    if isinstance(value, dict):
        return iter(value.values())
    return value if isinstance(value, list) else []


def _walk(value: Json) -> Iterator[tuple[Place, Json]]:
    """Every value and key with its place, in the order of the text. YAML aliases are visited once."""
    stack: list[tuple[Place, Json]] = [((), value)]
    visited: set[int] = set()
    while stack:
        place, part = stack.pop()
        if isinstance(part, list | dict):
            if id(part) in visited:
                continue
            visited.add(id(part))
        yield place, part
        if isinstance(part, dict):
            for key, child in reversed(part.items()):
                stack += [((*place, key), child), ((*place, key), key)]
        elif isinstance(part, list):
            stack += [((*place, index), child) for index, child in reversed(list(enumerate(part)))]


def _describe_place(place: Place) -> str:
    """`the field 'meta.scores[2]'`"""
    keys = [key if isinstance(key, int) else key.encode(errors="backslashreplace").decode()[:60] for key in place]
    names = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return f"the field '{names.removeprefix('.')}'" if place else "the value"


def _without_surrogates(value: Json) -> Json:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
