"""Fields: the typed values of a JSON object. A value of another type raises `DataError` with the field's name; a
missing field raises `KeyError`, as in any mapping."""

from contextlib import suppress
from typing import cast

from coseek.core.errors import DataError
from coseek.core.strict_json import Json

_LARGEST = 2**63
_LARGEST_WHOLE = 2**128
"""Seeds may be digests."""
_SHOWN = 60
"""Characters of a wrong value in a message."""


def text(row: dict[str, Json], name: str) -> str:
    value = row[name]
    if isinstance(value, str):
        return value
    raise _wrong(name, "a text", value)


def text_or_none(row: dict[str, Json], name: str) -> str | None:
    """`None` where the field is missing, too."""
    return None if row.get(name) is None else text(row, name)


def whole(row: dict[str, Json], name: str) -> int:
    """A whole number of at most 128 bits."""
    value = row[name]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_WHOLE:
        return value
    raise _wrong(name, "a whole number of at most 128 bits", value)


def whole_or_none(row: dict[str, Json], name: str) -> int | None:
    """`None` where the field is missing, too."""
    return None if row.get(name) is None else whole(row, name)


def number_or_none(row: dict[str, Json], name: str) -> float | None:
    """`None` where the field is missing, too."""
    value = row.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise _wrong(name, "a number", value)


def flag(row: dict[str, Json], name: str) -> bool:
    value = row[name]
    if isinstance(value, bool):
        return value
    raise _wrong(name, "true or false", value)


def mapping(row: dict[str, Json], name: str) -> dict[str, Json]:
    value = row[name]
    if isinstance(value, dict):
        return value
    raise _wrong(name, "an object", value)


def seconds(row: dict[str, Json], name: str) -> dict[str, float]:
    """An object of numbers."""
    value = row[name]
    if isinstance(value, dict) and set(map(type, value.values())) <= {int, float}:
        return cast(dict[str, float], value)
    raise _wrong(name, "an object of numbers", value)


def objects(row: dict[str, Json], name: str) -> list[dict[str, Json]]:
    """A list of objects."""
    value = row[name]
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return cast(list[dict[str, Json]], value)
    raise _wrong(name, "a list of objects", value)


def texts(row: dict[str, Json], name: str) -> tuple[str, ...]:
    value = row[name]
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(cast(list[str], value))
    raise _wrong(name, "a list of texts", value)


def tokens(row: dict[str, Json], name: str) -> tuple[int, ...]:
    """Whole numbers of at most 64 bits: ids of tokens."""
    value = row[name]
    if isinstance(value, list) and set(map(type, value)) <= {int}:
        ids = cast(list[int], value)
        if not ids or (min(ids) >= -_LARGEST and max(ids) < _LARGEST):
            return tuple(ids)
    raise _wrong(name, "a list of token ids", value)


def numbers(row: dict[str, Json], name: str) -> tuple[float, ...]:
    """Finite numbers, as floats; empty where the field is missing."""
    value = row.get(name, [])
    if isinstance(value, list) and set(map(type, value)) <= {int, float}:
        with suppress(OverflowError):  # a whole number beyond a float
            return tuple(map(float, cast(list[float], value)))
    raise _wrong(name, "a list of numbers", value)


def _wrong(name: str, needed: str, value: Json) -> DataError:
    try:
        said = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        said = "a number of thousands of digits"
    return DataError(f"{name!r} must be {needed}, not {said if len(said) <= _SHOWN else said[: _SHOWN - 1] + '…'}")
