"""Settings: typed, described where they are declared, and saved with the run. A misspelt one fails at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from coseek.data.errors import SettingError, nearest
from coseek.data.files import Json, JsonObject, read_yaml


class Settings(BaseModel):
    """Base of every group of settings: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


S = TypeVar("S", bound=Settings)


def load_settings(kind: type[S], path: Path, overrides: Sequence[str] = ()) -> S:
    """Read a YAML file into settings, then apply `a.b=c` overrides (values are YAML)."""
    return make_settings(kind, assign(read_yaml(path, "recipe"), overrides))


def assign(tree: JsonObject, overrides: Sequence[str]) -> JsonObject:
    """Put `a.b=c` overrides into a tree, whose groups they may change; values are YAML. Returns the tree."""
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise SettingError(f"{override!r} is not a setting; write name=value")
        try:
            put(tree, name.split("."), cast(Json, yaml.safe_load(value)))
        except yaml.YAMLError:
            raise SettingError(f"the value of {override!r} is not valid YAML; quote it: {name}='\"…\"'") from None
    return tree


def put(tree: JsonObject, path: Sequence[str], value: Json) -> None:
    """Set `tree[a][b] = value`, making the groups on the way."""
    for name in path[:-1]:
        group = tree.setdefault(name, {})
        if not isinstance(group, dict):
            raise SettingError(f"{name!r} holds a value, not a group of settings")
        tree = group
    tree[path[-1]] = value


def overlay(kind: type[BaseModel], below: JsonObject, above: JsonObject) -> JsonObject:
    """One tree of settings laid over another: groups of settings are merged, everything else is replaced whole."""
    merged = dict(below)
    for name, value in above.items():
        group, under = _group(kind, name), merged.get(name)
        if group is not None and isinstance(value, dict) and isinstance(under, dict):
            value = overlay(group, under, value)
        merged[name] = value
    return merged


def make_settings(kind: type[S], tree: Mapping[str, object]) -> S:
    """Check a tree of plain values; the first mistake becomes one sentence."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            group = _fields_at(kind, first["loc"][:-1])
            hint, known = nearest(str(first["loc"][-1]), group), ", ".join(sorted(group))
            raise SettingError(f"no setting named {where!r}{hint} Known here: {known}") from None
        raise SettingError(f"setting {where!r}: {first['msg']}, got {first['input']!r}") from None


def _fields_at(kind: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    for part in path:
        group = _group(kind, str(part))
        if group is None:
            return list(kind.model_fields)
        kind = group
    return list(kind.model_fields)


def _group(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The settings class of a field that is a group of settings, or may be one."""
    field = kind.model_fields.get(name)
    inner = field.annotation if field else None
    options = getattr(inner, "__args__", (inner,))
    groups = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
    return groups[0] if groups else None


def save_settings(settings: Settings) -> JsonObject:
    """The settings as plain values, ready for `run.yaml`."""
    return cast(JsonObject, settings.model_dump(mode="json"))


def first_difference(old: Json, new: Json, name: str = "") -> str:
    """`name = old, and now new` for the first setting that differs, else nothing."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            found = first_difference(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return ""
    return "" if old == new else f"{name} = {old!r}, and now {new!r}"
