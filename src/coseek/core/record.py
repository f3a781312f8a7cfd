"""Record: a frozen dataclass that is stored as one JSON object, and validated by pydantic when it is read.

Every field is written under its own name, in the order of the fields or of `KEYS`. Numbers, booleans and texts are not
converted into one another; unknown names are ignored. A field may be missing in a file if it is marked with `Omit`, or
if its default is `None`.
"""

import operator
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Self, TypeAlias, cast

from pydantic import AfterValidator, GetCoreSchemaHandler, TypeAdapter, ValidationError, WrapValidator
from pydantic_core import CoreSchema, core_schema

from coseek.core.errors import DataError
from coseek.core.strict_json import Json

_LARGEST = 2**128
"""Bound of whole numbers. Seeds may be digests."""
_LONGEST = 60
"""Maximum length of a wrong value in a message."""
_SCALARS = frozenset((int, float, bool, str))
"""Types that are valid JSON as they are."""
_WHOLE, _OBJECT, _LIST = "a whole number of at most 128 bits", "an object", "a list"
_NEEDED = {
    "string_type": "a text",
    "int_type": _WHOLE,
    "greater_than": _WHOLE,
    "less_than": _WHOLE,
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": _OBJECT,
    "is_instance_of": _OBJECT,
    "dataclass_type": _OBJECT,
    "tuple_type": _LIST,
    "too_long": _LIST + " of {max_length}",
    "enum": "{expected}",
    "literal_error": "{expected}",
    "value_error": "{error}",
}
"""Pydantic's error type → what the field must be."""


@dataclass(frozen=True, slots=True)
class Omit:
    """Marks a field that is not written for some values: `Annotated[int | None, OMIT_NONE]`."""

    when: Callable[[object], object]


OMIT_NONE = Omit(lambda value: value is None)
OMIT_EMPTY = Omit(operator.not_)
"""Empty, 0 or false."""
OMIT_TRUE = Omit(bool)
OPTIONAL = Omit(lambda value: False)
"""Always written, but may be missing in older files."""


def _keep_original(value: object, check: Callable[[object], object]) -> object:
    check(value)
    return value


def _check_64_bits(ids: tuple[int, ...]) -> tuple[int, ...]:
    try:
        array("q", ids)  # bounds of pydantic on each item would take five times as long
    except OverflowError:
        raise ValueError("token ids of at most 64 bits") from None
    return ids


Number: TypeAlias = Annotated[float, WrapValidator(_keep_original)]
"""A number that keeps its spelling: 0 does not become 0.0."""
TokenIds: TypeAlias = Annotated[tuple[int, ...], AfterValidator(_check_64_bits)]


@dataclass(frozen=True, slots=True, eq=False)
class _AsItIs:
    """Makes pydantic return a JSON value without copying it."""

    schema: CoreSchema

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return self.schema


PlainObject: TypeAlias = Annotated[dict[str, Json], _AsItIs(core_schema.is_instance_schema(dict))]
"""Any JSON object."""
PlainJson: TypeAlias = Annotated[Json, _AsItIs(core_schema.any_schema())]
"""Any JSON value."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Version of a kind of record. It is the first field in a file, `schema`."""

    version: int
    what: str
    """The kind with its article: `a trajectory`."""
    way_out: str = ""

    def check(self, row: Mapping[str, Json]) -> None:
        """Raise `DataError` for another version."""
        if (version := row.get("schema")) != self.version:
            raise DataError(f"{self.what} of schema {version!r}; this coseek reads schema {self.version}{self.way_out}")


class WrongField(DataError, ValueError):
    """A field whose value has the wrong type. Also a `ValueError`, so that `files.WRONG_SHAPE` includes it."""


class Record:
    """Base of dataclasses that are stored as JSON objects.

    A class whose JSON differs from its fields overrides `_written` and `_to_read`; if it differs completely, `to_json`
    and `from_json`. Records that contain the class use them, too.
    """

    __slots__ = ()
    SCHEMA: ClassVar[Schema | None] = None
    KEYS: ClassVar[tuple[str, ...]] = ()
    """Order of the fields in a file, if it is not that of the class."""

    def to_json(self) -> dict[str, Json]:
        row: dict[str, Json] = {} if self.SCHEMA is None else {"schema": self.SCHEMA.version}
        for name, is_omitted in _fields(type(self)):
            value = getattr(self, name)
            if is_omitted is None or not is_omitted(value):
                row[name] = value if type(value) in _SCALARS else _json_value(value)
        return self._written(row)

    @classmethod
    def from_json(cls, row: dict[str, Json]) -> Self:
        """Raises `KeyError` for a missing field and `WrongField` for a wrong one, with its path in the object."""
        if cls.SCHEMA is not None:
            cls.SCHEMA.check(row)
        try:
            return cast(Self, _adapter(cls).validate_python(row))
        except ValidationError as error:
            raise _refusal(error) from None

    def _written(self, row: dict[str, Json]) -> dict[str, Json]:
        """Convert the object of the fields to the object in the file."""
        return row

    @classmethod
    def _to_read(cls, row: dict[str, Json]) -> dict[str, Json]:
        """Convert the object in the file to the object of the fields."""
        return row

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not _inherits(cls, "from_json"):
            return core_schema.no_info_after_validator_function(cls.from_json, core_schema.is_instance_schema(dict))
        schema = handler(source)
        node = cast(_Node, handler.resolve_ref_schema(schema))
        while node["type"] != "dataclass-args":
            node = cast(_Node, node["schema"])
        omit_conditions = dict(_fields(cls))
        for field in cast(list[_Node], node["fields"]):
            value = cast(_Node, field["schema"])
            optional = omit_conditions[cast(str, field["name"])] is not None or value.get("default", field) is None
            if value["type"] == "default" and not optional:  # always written, so it must not be missing
                value = cast(_Node, value["schema"])
            field["schema"] = _make_strict(value)
        if _inherits(cls, "_to_read"):
            return schema
        return core_schema.no_info_before_validator_function(
            lambda row: cls._to_read(row) if isinstance(row, dict) else row, schema
        )


_Node: TypeAlias = dict[str, object]
"""A core schema: nested dictionaries with a `type`."""


def _inherits(kind: type[Record], method: str) -> bool:
    return getattr(kind, method).__func__ is getattr(Record, method).__func__


# Not `functools.cache`: mypy does not accept a class that is a dataclass as hashable.
_ADAPTERS: dict[type[Record], TypeAdapter[Record]] = {}
_FIELDS: dict[type[Record], tuple[tuple[str, Callable[[object], object] | None], ...]] = {}


def _adapter(kind: type[Record]) -> TypeAdapter[Record]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _fields(kind: type[Record]) -> tuple[tuple[str, Callable[[object], object] | None], ...]:
    """The fields in the order of the file, each with the condition under which it is not written."""
    if kind not in _FIELDS:
        fields = kind.__dataclass_fields__  # type: ignore[attr-defined]  # subclasses are dataclasses
        notes = {name: getattr(fields[name].type, "__metadata__", ()) for name in kind.KEYS or fields}
        marks = {name: [mark.when for mark in marks if isinstance(mark, Omit)] for name, marks in notes.items()}
        _FIELDS[kind] = tuple((name, next(iter(conditions), None)) for name, conditions in marks.items())
    return _FIELDS[kind]


def _json_value(value: object) -> Json:
    """Convert a field's value to JSON: a record, a tuple, a mapping, an enum, or a JSON value."""
    if isinstance(value, tuple):
        if not value or type(value[0]) in _SCALARS:
            return list(value)
        return [item.to_json() if isinstance(item, Record) else _json_value(item) for item in value]
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, StrEnum):
        return value.value
    return cast(Json, dict(value) if isinstance(value, Mapping) else value)


def _make_strict(schema: object, bounded: bool = True) -> object:
    """Make a schema strict in its numbers and booleans. `bounded` whole numbers have at most 128 bits.

    Pydantic's own setting `strict` would also refuse lists for tuples.
    """
    if isinstance(schema, list):
        return [_make_strict(item, bounded) for item in schema]
    if not isinstance(schema, dict):
        return schema
    node = {key: _make_strict(value, bounded and key != "items_schema") for key, value in schema.items()}
    if node.get("type") in ("int", "float", "bool"):
        node["strict"] = True
    return {**node, "gt": -_LARGEST, "lt": _LARGEST} if node.get("type") == "int" and bounded else node


def _refusal(error: ValidationError) -> Exception:
    """The exception for the first wrong field."""
    first = error.errors(include_url=False)[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), WrongField):  # from a record with its own `from_json`
        return cause
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
    if first["type"] == "missing":
        return KeyError(path)
    expected = _NEEDED.get(first["type"], first["msg"]).format(**first.get("ctx", {}))
    try:
        input_text = repr(first["input"])
    except ValueError:  # Python does not print numbers of thousands of digits
        input_text = "a number of thousands of digits"
    input_text = input_text if len(input_text) <= _LONGEST else input_text[: _LONGEST - 1] + "…"
    return WrongField(f"{repr(path) if path else 'a row'} must be {expected}, not {input_text}")
