"""Typed settings: declared with descriptions, read from YAML and overrides, and stored with the run."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, TypeAlias, TypeVar, cast, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from coseek.core.errors import ErrorList, Place, SettingError, closest
from coseek.core.files import Json, JsonObject, expand_home, read_yaml
from coseek.core.strict_yaml import InvalidYaml, Replace, parse_yaml


class Settings(BaseModel):
    """Base of every group of settings: frozen; unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _merge_with_defaults(cls, data: object) -> object:
        """Merge an incomplete group with the default of its field, not with the defaults of the group's class."""
        if not isinstance(data, dict):
            return data
        merged = {name: _expand_homes(value) for name, value in data.items()}
        for name, value in merged.items():
            if isinstance(value, bool) and name in cls.model_fields and _is_number(cls.model_fields[name].annotation):
                merged[name] = str(value)  # pydantic would read `yes` as 1; it refuses the text
            if isinstance(value, int) and not -(2**63) <= value < 2**64:  # strict JSON could not read it again
                raise SettingError(f"setting {name!r} has more than 64 bits; choose a smaller number")
        for name, field in cls.model_fields.items():
            if isinstance(value := merged.get(name), dict) and isinstance(field.default, Settings):
                group = cast(JsonObject, value)
                merged[name] = merge_settings(type(field.default), dump_settings(field.default), group)
        return merged


def _is_number(annotation: object) -> bool:
    """Whether a type is of numbers only, without booleans or text."""
    options = {*get_args(annotation), annotation}
    return not options.isdisjoint((int, float)) and options.isdisjoint((bool, str))


def _expand_homes(value: object) -> object:
    """Expand a leading `~/`. In any setting, a text that begins so is a path."""
    if isinstance(value, list):
        return [_expand_homes(item) for item in value]
    return expand_home(value) if isinstance(value, str) else value


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Replaces:
    """Marks a setting whose values are named overrides of the settings of its own class, such as stages."""

    merged: bool = False
    """Whether `merge_settings` merges overrides of the same name."""


class MayChange:
    """Marks a setting that may change on resume: it affects no result, or is the address of a server."""


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise PydanticCustomError("secret", "an environment variable is named here; put the secret into one")
    return name


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VariableName: TypeAlias = Annotated[str, AfterValidator(_variable)]
"""The name of an environment variable with a secret. An invalid name may be the secret itself, so errors omit it."""

Overrides: TypeAlias = str | Sequence[str] | Mapping[str, object]
"""Overrides of settings: `"rl.steps=60"`, a list of such texts (values are YAML), or `{"rl.steps": 60}`."""

NEEDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "string": "text",
    "list": "a list such as [a, b]",
    "tuple": "a list such as [a, b]",
    "dict": "`name: value` lines",
    "model": "`name: value` lines",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
}
"""Pydantic's error type, or the first word of it → what the setting needs."""
RENAMED = {
    "add_tag_tokens": ("marks",),
    "add_word_tokens": ("words",),
    "checkpoint_every": ("save_steps", "save_freq"),
    "dynamic_sampling": ("resample",),
    "dynamic_sampling_max_factor": ("dynamic_sampling_at_most",),
    "entropy_coef": ("entropy",),
    "epochs": ("ppo_epochs", "num_iterations"),
    "evaluate_every": ("eval_steps", "test_freq"),
    "gradient_checkpointing": ("checkpointing",),
    "group_size": ("num_generations", "n"),
    "kl_coef": ("kl", "beta", "kl_loss_coef"),
    "kl_location": ("kl_in",),
    "loss_agg_mode": ("normaliser",),
    "loss_scale_factor": ("constant_tokens",),
    "lr": ("learning_rate",),
    "lr_scheduler_type": ("decay",),
    "max_grad_norm": ("clip_norm",),
    "min_improvement": ("least",),
    "min_lr_ratio": ("floor",),
    "num_minibatches": ("minibatches",),
    "probe_trajectories": ("probe_runs",),
    "questions_per_step": ("train_batch_size",),
    "rollout_is": ("importance",),
    "rollout_is_threshold": ("importance_cap",),
    "scale_by_std": ("scale_rewards",),
    "steps": ("max_steps", "total_training_steps"),
    "strategy": ("workers",),
    "target_modules": ("targets",),
    "warmup_ratio": ("warmup_share",),
    "zero_std_groups": ("zero_spread",),
}
"""Setting → its names in TRL, verl and version 0.2, for hints."""
LONGEST = 80
"""Maximum length of a refused value in a message."""
MOST = 12
"""Maximum number of wrong settings in one error."""


def load_settings(kind: type[S], path: Path, overrides: Sequence[str] = ()) -> S:
    """Read a YAML file into settings, then apply `a.b=c` overrides (values are YAML)."""
    return make_settings(kind, apply_overrides(read_yaml(path, "recipe"), overrides, kind), path, overrides)


def apply_overrides(tree: JsonObject, overrides: Sequence[str], kind: type[BaseModel] | None = None) -> JsonObject:
    """Apply `a.b=c` overrides (values are YAML) to a tree in place, and return it.

    With `kind`, the class of the tree's settings, an override of a whole group (`rl={steps: 3}`) is merged into it, as
    in a YAML file; `rl=!replace {steps: 3}` replaces the group.
    """
    mistakes = ErrorList()
    for override in overrides:
        mistakes.collect(_assign, tree, override, kind)
    mistakes.raise_all()
    return tree


def _assign(tree: JsonObject, override: str, kind: type[BaseModel] | None) -> None:
    name, equals, value = (text.strip() for text in override.partition("="))
    if not equals or not name:
        raise SettingError(f"{override!r} is not a setting; write name=value")
    try:
        if " #" in value and value[0] not in "\"'[{":
            raise InvalidYaml("the rest is a comment")
        set_path(tree, _parts(name), cast(Json, parse_yaml(value)), kind)
    except InvalidYaml:
        way_out = "check its brackets and commas" if value[:1] in ("{", "[") else f"quote it: {name}='\"…\"'"
        raise SettingError(f"the value of {override!r} is not valid YAML; {way_out}") from None


def _parts(name: str) -> list[str]:
    """Split a dotted name. One of its parts may be a Python file, whose dot does not count."""
    return re.split(r"\.(?!py\b)", name)


def typed_overrides(overrides: Overrides) -> list[str]:
    """Convert overrides to `name=value` texts, as on a command line."""
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f"{name}={_as_yaml(name, value)}" for name, value in overrides.items()]
    for override in overrides:
        if not isinstance(override, str):
            raise SettingError(f"settings are texts such as 'rl.steps=60', or a mapping to values, not {override!r}")
    return list(overrides)


def _as_yaml(name: str, value: object) -> str:
    """Serialise a value to one line of YAML. (JSON will not do: YAML reads its `1e-05` as a text.)"""
    try:
        json_value = json.loads(json.dumps(value, default=partial(_json_value, name)))
    except (TypeError, ValueError):
        raise SettingError(f"the setting {name!r} is text, a number, a list or a mapping, not {value!r}") from None
    text = yaml.safe_dump(json_value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _json_value(name: str, value: object) -> object:
    """Convert settings, paths and scalars to JSON values. Raises `SettingError` for anything else."""
    if isinstance(value, Settings):
        return dump_settings(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if (scalar_value := scalar(value)) is value:
        raise SettingError(f"a value of the setting {name!r} is text, a number, a list or a mapping, not {value!r}")
    return scalar_value


def scalar(value: object) -> object:
    """Convert a scalar of numpy or torch to a Python number; return anything else as it is."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def set_path(tree: JsonObject, path: Sequence[str], value: Json, kind: type[BaseModel] | None = None) -> None:
    """Set `tree[a][b] = value`, and create missing groups. A group of `kind` is merged (see `merge_settings`).

    A mapping of free names, such as the terms of a reward, keeps its other entries, including those of its default. Its
    `preset` replaces them all.
    """
    for depth, name in enumerate(path[:-1], start=1):
        field = kind.model_fields.get(name) if kind else None
        group = tree.setdefault(name, deepcopy(field.default) if field and isinstance(field.default, dict) else {})
        if not isinstance(group, dict):
            whole = ".".join(path[:depth])
            raise SettingError(f"{whole!r} holds a value, not a group of settings; to replace it, write {whole}=VALUE")
        tree, kind = group, kind and group_of(kind, name)
        if field and not kind and path[-1] == "preset":
            tree.clear()
    tree[path[-1]] = _merge_setting(kind, path[-1], tree.get(path[-1]), value)


def merge_settings(kind: type[BaseModel], below: JsonObject, above: JsonObject) -> JsonObject:
    """Merge two trees of settings: groups are merged unless tagged `!replace`; other values are replaced."""
    return dict(below) | {name: _merge_setting(kind, name, below.get(name), value) for name, value in above.items()}


def _merge_setting(kind: type[BaseModel] | None, name: str, base: Json, value: Json) -> Json:
    """Merge the value of the setting `name` of a class into another value."""
    field = kind.model_fields.get(name) if kind else None
    if field is None or Replaces(merged=True) not in field.metadata:
        return _merge_group(group_of(kind, name) if kind else None, base, value)
    if not isinstance(value, dict) or not isinstance(base, dict) or isinstance(value, Replace):
        return value
    return {**base, **{part: _merge_group(kind, base.get(part), changes) for part, changes in value.items()}}


def _merge_group(group: type[BaseModel] | None, base: Json, value: Json) -> Json:
    if group is None or not isinstance(value, dict) or not isinstance(base, dict) or isinstance(value, Replace):
        return value
    return merge_settings(group, base, value)


def _without_replace_tags(value: Json) -> Json:
    """Remove `!replace` tags, which are not needed once all layers are merged."""
    if isinstance(value, dict):
        return {name: _without_replace_tags(item) for name, item in value.items()}
    return [_without_replace_tags(item) for item in value] if isinstance(value, list) else value


def make_settings(kind: type[S], tree: Mapping[str, object], source: Path | str = "", typed: Sequence[str] = ()) -> S:
    """Validate a tree of plain values. Raises `SettingError` with one sentence per mistake.

    A sentence begins with the file `source`, unless the setting was `typed` as an override.
    """
    try:
        return kind.model_validate(_without_replace_tags(cast(Json, tree)))
    except ValidationError as error:
        problems = mistakes(error, kind, tree)
    except SettingError as error:  # raised by a validator
        problems = [((), sentence) for sentence in error.sentences]
    names = [override.partition("=")[0].split(".") for override in typed]
    sentences = []
    for place, sentence in problems:
        # An override may have set this place, a part of it, or a group around it.
        is_overridden = any(all(a == str(b) for a, b in zip(name, place, strict=False)) for name in names)
        sentences.append(f"{source}: {sentence}" if source and not is_overridden else sentence)
    raise SettingError(*sentences, places=[place for place, _ in problems])


def mistakes(
    error: ValidationError, kind: type[BaseModel] | None = None, tree: Mapping[str, object] | None = None
) -> list[tuple[Place, str]]:
    """Place and sentence of each wrong setting, of the first `MOST`."""
    by_place: dict[Place, list[ErrorDetails]] = {}
    for detail in error.errors():
        by_place.setdefault(_place_of(detail, tree), []).append(detail)
    descriptions = [(place, _sentence(place, details, kind)) for place, details in list(by_place.items())[:MOST]]
    more = len(by_place) - len(descriptions)
    return [*descriptions, ((), f"and {more} more settings are wrong")] if more else descriptions


def _sentence(place: Place, errors: Sequence[ErrorDetails], kind: type[BaseModel] | None) -> str:
    """Describe one wrong setting. A union has one error per type."""
    first = errors[0]
    setting = ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        if "." in str(place[-1]):
            nested: object = first["input"]
            for name in reversed(_parts(setting)):
                nested = {name: nested}
            return f"no setting named {setting!r} in a file; write `{_as_yaml(setting, nested)[1:-1]}`"
        return f"no setting named {setting!r}{_hint(kind, place) if kind else ''}"
    if first["type"] == "invalid_key":
        return f"the name of a setting is text, not {first['input']!r}; mend it, or put it in quotes"
    if first["type"] == "missing":
        return f"the setting {setting!r} is missing; add it"
    input_text = repr(first["input"])
    input_text = input_text if len(input_text) <= LONGEST else input_text[: LONGEST - 1] + "…"
    templates = [NEEDS.get(error["type"], NEEDS.get(error["type"].partition("_")[0], "")) for error in errors]
    needs = [need.format(**error.get("ctx", {})) for need, error in zip(templates, errors, strict=True)]
    if kind and _takes_null(kind, place):
        needs.append("null")
    if "" not in needs:
        quotes = "; put it in quotes" if "text" in needs and isinstance(first["input"], int | float | date) else ""
        return f"setting {setting!r} needs {' or '.join(dict.fromkeys(needs))}, got {input_text}{quotes}"
    message = str(first.get("ctx", {}).get("error", first["msg"]))
    message = f"setting {setting!r}: {message}" if setting else message
    return message if isinstance(first["input"], dict) or first["type"] == "secret" else f"{message}, got {input_text}"


def _takes_null(kind: type[BaseModel], place: Place) -> bool:
    """Whether a setting may be null."""
    for part in place[:-1]:
        kind = group_of(kind, str(part)) or kind
    field = kind.model_fields.get(str(place[-1])) if place else None
    return field is not None and NoneType in get_args(field.annotation)


def _place_of(error: ErrorDetails, tree: Mapping[str, object] | None) -> Place:
    """The place of a wrong setting in the tree, without the union member that pydantic appends."""
    value: object = tree
    for depth, part in enumerate(error["loc"] if tree is not None and error["type"] != "missing" else ()):
        try:
            value = cast(Mapping[str | int, object], value)[part]
        except (LookupError, TypeError):
            return error["loc"][:depth]
    return error["loc"]


def _hint(kind: type[BaseModel], place: Sequence[str | int]) -> str:
    """Suggest a setting, and list the names of the group. In order of preference: the new name of an old one, the same
    name deeper, a similar name in this group or one level below, the same name in another group."""
    name, group = str(place[-1]).lower(), kind
    for part in place[:-1]:
        group = group_of(group, str(part)) or group
    names = {name, *(new for new, old in RENAMED.items() if name in old)}
    paths = _paths(group)
    similar_name = closest(name, group.model_fields)
    similar_leaf = closest(name, [path[-1] for path in paths if len(path) == 2])
    matches = [path for path in paths if path[-1] in names]
    matches += [path for path in paths if path == (similar_name,) or path[-1] == similar_leaf]
    suggestions = [(*map(str, place[:-1]), *path) for path in matches]
    suggestions += [path for path in _paths(kind) if path[-1] in names and len(place) > 1]
    hint = f"; did you mean {'.'.join(suggestions[0])!r}?" if suggestions else "."
    return f"{hint} Known here: {', '.join(sorted(group.model_fields))}"


def _paths(kind: type[BaseModel]) -> list[tuple[str, ...]]:
    """The paths of all settings in this group and below, the shortest first."""
    return [*((name,) for name in kind.model_fields), *sorted(_nested_paths(kind), key=len)]


def _nested_paths(kind: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The paths of all settings in the groups of this one, except those in lists and mappings of groups."""
    for name, field in kind.model_fields.items():
        group = group_of(kind, name)
        if group is not None and get_origin(field.annotation) not in (dict, list, tuple):
            yield from ((name, leaf) for leaf in group.model_fields)
            yield from ((name, *path) for path in _nested_paths(group))


def group_of(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The settings class of a field, if its type is or includes one."""
    field = kind.model_fields.get(name)
    annotation = field.annotation if field else None
    options = getattr(annotation, "__args__", (annotation,))
    groups = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
    return groups[0] if groups else None


def without(tree: JsonObject, places: Sequence[Place]) -> JsonObject | None:
    """Copy a tree without the settings at these places; `None` if one of them does not exist."""
    copy = deepcopy(tree)
    for place in places:
        group: Json = copy
        for part in place[:-1]:
            group = group.get(str(part)) if isinstance(group, dict) else None
        if not place or not isinstance(group, dict) or place[-1] not in group:
            return None
        del group[str(place[-1])]
    return copy


def dump_settings(settings: Settings) -> JsonObject:
    """Convert settings to plain values, as in `run.yaml`."""
    return cast(JsonObject, settings.model_dump(mode="json"))


def fixed_settings(kind: type[BaseModel] | None, tree: JsonObject) -> JsonObject:
    """Copy a tree without settings marked `MayChange`, and without groups that contain nothing else."""
    fixed = JsonObject()
    for name, value in tree.items():
        field = kind.model_fields.get(name) if kind is not None else None
        marks = [type(mark) for mark in field.metadata] if field is not None else []
        if MayChange in marks:
            continue
        if isinstance(value, dict) and Replaces in marks:
            fixed[name] = {part: fixed_settings(kind, cast(JsonObject, changes)) for part, changes in value.items()}
        elif not isinstance(value, dict) or kind is None or (group := group_of(kind, name)) is None:
            fixed[name] = value
        elif rest := fixed_settings(group, value):
            fixed[name] = rest
    return fixed


def changed_settings(settings: Settings, usual: Settings | None = None) -> JsonObject:
    """The settings that differ from `usual`, by default from the defaults; `make_settings` restores all from them."""
    values, changed = dump_settings(settings), JsonObject()
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        default = field.get_default(call_default_factory=True) if usual is None else getattr(usual, name)
        if field.exclude or value == default:
            continue
        if isinstance(value, Settings):
            changed[name] = changed_settings(value, default if type(default) is type(value) else None)
        else:
            changed[name] = values[name]
    if "preset" in changed and "presets" in values:
        changed["presets"] = values["presets"]  # if empty, the preset is merged already
    return changed


def check_same_settings(folder: Path, began: Json, now: Json, way_out: str = "use the same settings") -> None:
    """Raise `SettingError` with the first setting that differs from those `folder` was begun with."""
    recipe_folders = (path for path in reversed(folder.resolve().parents) if (path / "recipe.yaml").is_file())
    if difference := first_difference(began, now, root=next(recipe_folders, None)):
        raise SettingError(f"{folder} was begun with {difference} is asked for; {way_out}, or another --out")


def first_difference(old: Json, new: Json, name: str = "", root: Path | None = None) -> str:
    """Describe the first setting that differs: `name = old, and now new`. Empty if there is none. `root` is the folder
    of a co-training, which may have been moved since, together with all paths in it."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = {**new, **old}
        differences = (first_difference(old.get(k), new.get(k), f"{name}.{k}" if name else k, root) for k in keys)
        return next(filter(None, differences), "")
    return "" if _is_same_value(old, new, root) else f"{name} = {old!r}, and now {new!r}"


def _is_same_value(old: Json, new: Json, root: Path | None) -> bool:
    """Whether two values are equal, or spellings of one existing path. A text without `/` may be a part's name."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_is_same_value(*pair, root) for pair in zip(old, new, strict=True))
    if old != new and isinstance(old, str) and isinstance(new, str) and "/" in old and "/" in new:
        paths = Path(old), Path(new)
        if root is not None and paths[1].is_relative_to(root) and old.endswith(f"/{paths[1].relative_to(root)}"):
            return True
        return all(map(os.path.exists, paths)) and os.path.samefile(*paths)
    return old == new
