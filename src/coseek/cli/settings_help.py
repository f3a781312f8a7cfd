"""Settings list: every setting of a recipe by the name to type, with its value and its docstring."""

import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from coseek.cli.terminal import print_json, tell
from coseek.core.errors import SettingError, nearest
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, changed_settings, dump_settings, group_of
from coseek.core.strict_yaml import InvalidYaml, parse_yaml

WIDEST = 120
"""Maximum number of columns; longer lines are hard to read."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, or a group of settings."""

    name: str
    """Dotted, as in NAME=VALUE."""
    about: str
    value: Json = None
    is_group: bool = False
    """Whether it is a group. A group has no value; its settings follow."""
    only_with: str | None = None
    """The group of this setting, if the recipe leaves it unset; the value is then the default in that group."""
    required: bool = False
    """Whether it has no default, and must be set if its group is."""

    def to_json(self) -> JsonObject:
        return {name: getattr(self, name) for name in ("name", "value", "about", "only_with", "required")}


ALL = "all"
"""The prefix of every setting."""


def print_settings(
    load: Callable[[list[str]], Settings],
    words: Sequence[str],
    as_json: bool,
    parent: tuple[str, Settings] | None = None,
) -> None:
    """Print settings of a recipe. `load` reads it with overrides, which are the `words` of the form `NAME=VALUE`.

    The other words are prefixes of the settings to print. Without any, print what the recipe changes of its `parent`
    (name and settings), by default of the defaults, and the groups. JSON without a prefix has every setting. Raises
    `SettingError` for a prefix without settings.
    """
    settings = load([word for word in words if "=" in word])
    prefixes = [word for word in words if "=" not in word]
    every = list(listed(settings))
    chosen = [setting for setting in every if any(_is_below(setting.name, prefix) for prefix in prefixes or [ALL])]
    for prefix in prefixes:
        if not any(_is_below(setting.name, prefix) for setting in every):
            hint = nearest(prefix, [setting.name for setting in every])
            raise SettingError(f"no settings under {prefix!r}{hint} Groups: {', '.join(_groups(every))}")
    width = min(shutil.get_terminal_size().columns, WIDEST)
    if as_json:
        print_json([setting.to_json() for setting in chosen if not setting.is_group])
    elif prefixes:
        tell("\n".join(in_words(setting, width) for setting in chosen))
    else:
        _print_changes(settings, every, parent, width)


def _print_changes(
    settings: Settings, every: Sequence[Setting], parent: tuple[str, Settings] | None, width: int
) -> None:
    """Print the settings that differ from the parent's, then the groups and how to list them."""
    changed = changed_settings(settings, parent and parent[1])
    parent_values = {setting.name: setting.value for setting in listed(parent[1])} if parent else {}
    leaves = [setting for setting in every if not setting.is_group]
    lines = []
    for setting in leaves:
        if setting.only_with is None and _contains(changed, setting.name):
            parent_note = f"    ({_format_value(parent_values[setting.name])})" if setting.name in parent_values else ""
            lines.append(f"{setting.name}={_format_value(setting.value)}{parent_note}")
    reference = f"{parent[0]} (in brackets its value)" if parent else "the defaults"
    tell(f"{len(lines)} settings differ from {reference}:\n")
    for line in lines:
        tell(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="      "))
    counts = [f"{group} {sum(_is_below(setting.name, group) for setting in leaves)}" for group in _groups(every)]
    tell("\n" + textwrap.fill(f"All settings, by group: {', '.join(counts)}.", width))
    tell(f"`--settings PREFIX` explains some of them (`--settings rl.policy`), `--settings {ALL}` every one.")


def _is_below(name: str, prefix: str) -> bool:
    return prefix == ALL or f"{name}.".startswith(f"{prefix.rstrip('.')}.")


def _groups(every: Sequence[Setting]) -> list[str]:
    """Names of the top level, in order."""
    return list(dict.fromkeys(setting.name.partition(".")[0] for setting in every))


def _contains(changed: JsonObject, name: str) -> bool:
    """Whether a tree of changes contains a setting, or a value in place of its group."""
    value: Json = changed
    for key in name.split("."):
        if not isinstance(value, dict):
            return True
        if key not in value:
            return False
        value = value[key]
    return True


def listed(settings: Settings, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting in the order of declaration, a group before its settings."""
    tree = dump_settings(settings)
    for name, field in type(settings).model_fields.items():
        value, full_name = getattr(settings, name), prefix + name
        if isinstance(value, Settings):
            yield Setting(full_name, _description(field), is_group=True)
            yield from listed(value, f"{full_name}.")
            continue
        yield Setting(full_name, _description(field), tree[name])
        if value is None and (kind := group_of(type(settings), name)) is not None:
            yield from _unset_settings(kind, full_name, full_name)


def _unset_settings(kind: type[BaseModel], group: str, only_with: str) -> Iterator[Setting]:
    """Yield the settings of a group that is not set, with their defaults."""
    for name, field in kind.model_fields.items():
        full_name = f"{group}.{name}"
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if (group_class := group_of(kind, name)) is not None:
            yield Setting(full_name, _description(field), is_group=True, only_with=only_with)
            yield from _unset_settings(group_class, full_name, only_with)
        else:
            value = cast(Json, to_jsonable_python(default))
            yield Setting(full_name, _description(field), value, only_with=only_with, required=field.is_required())


def in_words(setting: Setting, width: int) -> str:
    """Format a setting as it is typed, with its meaning below; a group as a heading."""
    if setting.is_group:
        return "\n" + textwrap.fill(f"{setting.name}: {setting.about}", width, subsequent_indent="    ")
    about = setting.about
    if setting.only_with is not None:
        about += f" ({'Must be given' if setting.required else 'Only'} with {setting.only_with}.)"
    assignment = f"{setting.name}={'…' if setting.required else _format_value(setting.value)}"
    return "\n".join([assignment, textwrap.fill(about, width, initial_indent="    ", subsequent_indent="    ")])


def _format_value(value: Json) -> str:
    """Format a value as one line of YAML, for NAME=VALUE. Texts that YAML reads as texts need no quotes."""
    with suppress(InvalidYaml):
        if isinstance(value, str) and "\n" not in value and parse_yaml(value or "null") == value:
            return value
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**31)
    return text.removesuffix("\n").removesuffix("\n...")


def _description(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())
