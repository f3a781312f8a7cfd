"""Precision settings, and `auto`, the fastest precision on this machine.

A setting's type names its use; `resolve_precisions` replaces each `auto`, so that stored settings name what was used.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias, TypeVar, cast

from pydantic import BaseModel

from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, dump_settings, group_of, make_settings

Precision: TypeAlias = Literal["float32", "bfloat16"]
PrecisionSetting: TypeAlias = Literal["float32", "bfloat16", "auto"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
AUTO = "auto"


class Use(StrEnum):
    """Uses of arithmetic."""

    TRAINING = "training"
    SAMPLING = "sampling"
    """Token by token: few rows at once."""
    ENCODING = "encoding"
    """Many tokens at once, without a gradient."""


TrainingPrecision: TypeAlias = Annotated[PrecisionSetting, Use.TRAINING]
SamplingPrecision: TypeAlias = Annotated[PrecisionSetting, Use.SAMPLING]


class Replaces:
    """Marks a field of named overrides of the class's own settings, such as stages."""


ENCODER = "precision"
"""The encoder's precision in a retriever's untyped settings."""

Place: TypeAlias = tuple[str, ...]
"""The names that lead to a setting."""
Choose: TypeAlias = Callable[[Use, Place], Precision]

S = TypeVar("S", bound=Settings)


def resolve_precisions(settings: S, choose: Choose, began: JsonObject | None = None) -> S:
    """Replace every `auto`: by the precision in `began`, the stored settings of a resumed run, else by `choose`."""
    tree = dump_settings(settings)
    wishes = [place for place, _, value in named(type(settings), tree) if value == AUTO]
    if not wishes:
        return settings
    uses = {place: use for place, use, _ in named(type(settings), tree)}
    for place in wishes:
        before = _at(began, place)
        group = _at(tree, place[:-1])
        assert isinstance(group, dict)
        group[place[-1]] = before if before in PRECISIONS else choose(uses[place], place)
    unstored = {name: getattr(settings, name) for name, field in type(settings).model_fields.items() if field.exclude}
    return make_settings(type(settings), tree).model_copy(update=unstored)


def named(kind: type[BaseModel] | None, tree: JsonObject, above: Place = ()) -> Iterator[tuple[Place, Use, str]]:
    """Every precision in a tree of settings: place, use and value."""
    for name, value in tree.items():
        field = kind.model_fields.get(name) if kind is not None else None
        marks = field.metadata if field is not None else []
        own = getattr(kind, "USE", None) if name == "precision" else None  # that of a `Placement`
        use = next((mark for mark in marks if isinstance(mark, Use)), own)
        if isinstance(value, str) and (use is not None or (kind is None and name == ENCODER)):
            yield (*above, name), use or Use.ENCODING, value
        elif isinstance(value, dict) and any(isinstance(mark, Replaces) for mark in marks):
            for part, settings in value.items():
                yield from named(kind, cast(JsonObject, settings), (*above, name, part))
        elif isinstance(value, dict):
            yield from named(group_of(kind, name) if kind is not None else None, value, (*above, name))


def device_at(tree: JsonObject, place: Place) -> str:
    """The device of the model whose precision is at this place: that of the nearest group around it that names one."""
    groups = (_at(tree, place[:depth]) for depth in range(len(place) - 1, -1, -1))
    found = (group.get("device") for group in groups if isinstance(group, dict))
    return next((device for device in found if isinstance(device, str)), AUTO)


def _at(tree: Json, place: Place) -> Json:
    for name in place:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree
