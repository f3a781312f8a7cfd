"""Settings list: every setting of a recipe by the name that is typed, with its value and its meaning.

The meaning is the docstring where the setting is declared, so the list is always up to date.
"""

import shutil
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import cast, get_args

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from coseek.cli.terminal import print_json, tell
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, dump_settings
from coseek.core.strict_yaml import InvalidYaml, parse_yaml

WIDEST = 120
"""Columns of a line, at most; longer lines are hard to read."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, or a group of them."""

    name: str
    """Dotted, as in NAME=VALUE."""
    about: str
    value: Json = None
    is_group: bool = False
    """Whether it is a group, which has no value of its own; its settings follow."""
    only_with: str | None = None
    """The group that this recipe leaves unset; the value is then the default inside that group."""
    required: bool = False
    """Whether it has no default, and must be given with its group."""

    def to_json(self) -> JsonObject:
        shown: JsonObject = {"name": self.name, "value": self.value, "about": self.about}
        return {**shown, "only_with": self.only_with, "required": self.required}


def print_settings(settings: Settings, as_json: bool) -> None:
    """Print the list as text or as JSON."""
    if as_json:
        print_json([one.to_json() for one in listed(settings) if not one.is_group])
        return
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for one in listed(settings):
        tell(in_words(one, width))


def listed(settings: Settings, prefix: str = "") -> Iterator[Setting]:
    """Every setting in the order of declaration, a group before its settings."""
    tree = dump_settings(settings)
    for name, field in type(settings).model_fields.items():
        value, full = getattr(settings, name), prefix + name
        if isinstance(value, Settings):
            yield Setting(full, _about(field), is_group=True)
            yield from listed(value, f"{full}.")
            continue
        yield Setting(full, _about(field), tree[name])
        if value is None and (kind := _kind(field)) is not None:
            yield from _unset(kind, full, full)


def _unset(kind: type[Settings], group: str, only_with: str) -> Iterator[Setting]:
    """The settings of a group that is not set, with their defaults."""
    for name, field in kind.model_fields.items():
        full = f"{group}.{name}"
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        inner = _kind(field)
        if isinstance(default, Settings):
            inner, default = type(default), None
        if inner is not None:
            yield Setting(full, _about(field), is_group=True, only_with=only_with)
            yield from _unset(inner, full, only_with)
        else:
            value = cast(Json, to_jsonable_python(default))
            yield Setting(full, _about(field), value, only_with=only_with, required=field.is_required())


def in_words(one: Setting, width: int) -> str:
    """A setting as it is typed, with its meaning below; a group as a heading."""
    about = one.about
    if one.only_with is not None and not one.is_group:
        about += f" (Must be given with {one.only_with}.)" if one.required else f" (Only with {one.only_with}.)"
    if one.is_group:
        return "\n" + textwrap.fill(f"{one.name}: {about}", width, subsequent_indent="    ")
    typed = f"{one.name}=…" if one.required else f"{one.name}={_typed(one.value)}"
    return "\n".join([typed, textwrap.fill(about, width, initial_indent="    ", subsequent_indent="    ")])


def _reads_as(text: str) -> bool:
    """Whether a text is itself as a YAML value."""
    with suppress(InvalidYaml):
        return parse_yaml(text or "null") == text
    return False


def _typed(value: Json) -> str:
    """A value as YAML on one line, as NAME=VALUE takes it."""
    if isinstance(value, str) and _reads_as(value) and "\n" not in value:
        return value
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**31)
    return text.removesuffix("\n").removesuffix("\n...")


def _about(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _kind(field: FieldInfo) -> type[Settings] | None:
    """The class of a field that is a group of settings, or may be one."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)
