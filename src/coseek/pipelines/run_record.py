"""Beginning: a training folder remembers what it was begun with, and goes on with nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import yaml

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject, atomic_write, check_output_folder, is_failed_start
from coseek.core.plugins import plugin_digests
from coseek.core.settings import Settings, dump_settings, first_difference, make_settings
from coseek.data.identities import KEY, Identities, check_identities
from coseek.data.run import provenance
from coseek.pipelines.precisions import resolve_recipe, said_of

FILE = "recipe.yaml"
"""The whole recipe, versions and commit; and the digests of what it names: Python files, models, questions, indexes."""
OWN = "own_parts"

R = TypeVar("R", bound=Settings)


def silent(line: str) -> None:
    """Says nothing."""


def begin(
    folder: Path,
    recipe: R,
    resume: bool,
    bound: Callable[[R], JsonObject] = dump_settings,
    identities: Identities | None = None,
    going_on: Callable[[R, R], None] | None = None,
    say: Callable[[str], None] = silent,
) -> R:
    """Write the recipe into a new folder, or check that it is the one that the folder was begun with.

    Returns the recipe as it is trained, which is what is written: with the name of a precision in place of `auto`. A
    run that goes on computes as it began, whatever is fastest now. A folder in which a failed start left nothing but
    its record counts as new. `bound` leaves out what may change when a run goes on. Settings that are younger than the
    folder count as their defaults. `identities` of what the recipe names must be those of the start. `going_on` is
    called with the recipe that the folder was begun with and the new one, after all checks and before the new one takes
    its place in the file; it may raise.
    """
    path, now = folder / FILE, dict(identities or {})
    check_output_folder(folder, FILE)
    asked = recipe
    if not path.exists() or is_failed_start(folder, FILE):
        recipe = resolve_recipe(asked)
        tree: JsonObject = {"recipe": dump_settings(recipe), KEY: {**now}, **provenance()}
        if own := plugin_digests(bound(recipe)):
            tree[OWN] = own
        _write(path, tree)
        _tell(asked, recipe, say)
        return recipe
    if not resume:
        raise DataError(f"{folder} holds a training run already; go on with --resume, or choose another --out")
    written = cast(JsonObject, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    began = resolve_recipe(make_settings(type(recipe), cast(JsonObject, written.get("recipe") or {}), path))
    recipe = resolve_recipe(asked, began)
    if different := first_difference(bound(began), bound(recipe)):
        raise SettingError(f"{folder} was begun with {different} is asked for; take the same recipe, or another --out")
    own_began = cast(JsonObject, written.get(OWN) or {})
    for name, digest in plugin_digests(bound(recipe)).items():
        if own_began.get(name) != digest:
            raise SettingError(
                f"{name} is not the file that {folder} was begun with; put that one back, or choose another --out"
            )
    check_identities(path, written.get(KEY), now)
    if going_on is not None:
        going_on(began, recipe)
    known = cast(dict[str, str], written.get(KEY) or {})
    tree = {**written, "recipe": dump_settings(recipe), KEY: {**known, **now}}
    if tree != written:
        _write(path, tree)
    _tell(asked, recipe, say)
    return recipe


def _write(path: Path, tree: JsonObject) -> None:
    with atomic_write(path) as file:
        yaml.safe_dump(tree, file, sort_keys=False, allow_unicode=True)


def _tell(asked: Settings, recipe: Settings, say: Callable[[str], None]) -> None:
    for line in said_of(asked, recipe):
        say(line)
