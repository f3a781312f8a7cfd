"""Beginning: a training folder remembers the recipe that it was begun with, and goes on with no other."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import yaml

from coseek.data.errors import DataError, SettingError
from coseek.data.files import JsonObject, atomic_write, refuse_strangers
from coseek.data.own_part import digests
from coseek.data.run import provenance
from coseek.data.settings import Settings, first_difference, make_settings, save_settings
from coseek.training.precisions import said_of, settled_recipe

FILE = "recipe.yaml"
"""The whole recipe, versions and commit; and which files of one's own it names, with their digests."""
OWN = "own_parts"

R = TypeVar("R", bound=Settings)


def silent(line: str) -> None:
    """Says nothing."""


def begin(
    folder: Path,
    recipe: R,
    resume: bool,
    bound: Callable[[R], JsonObject] = save_settings,
    say: Callable[[str], None] = silent,
) -> R:
    """Write the recipe into a new folder, or check that it is the one that the folder was begun with.

    Returns the recipe as it is trained, which is what is written: with the name of a precision in place of `auto`. A
    run that goes on computes as it began, whatever is fastest now. `bound` leaves out what may change when a run goes
    on. Settings that are younger than the folder count as their defaults.
    """
    path = folder / FILE
    refuse_strangers(folder, FILE)
    asked = recipe
    if not path.exists():
        recipe = settled_recipe(asked)
        with atomic_write(path) as file:
            tree = {"recipe": save_settings(recipe), **provenance()}
            if own := digests(save_settings(recipe)):
                tree[OWN] = own
            yaml.safe_dump(tree, file, sort_keys=False, allow_unicode=True)
        _tell(asked, recipe, say)
        return recipe
    if not resume:
        raise DataError(f"{folder} holds a training run already; go on with --resume, or choose another --out")
    written = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    began = settled_recipe(make_settings(type(recipe), written.get("recipe") or {}, path))
    recipe = settled_recipe(asked, began)
    if different := first_difference(bound(began), bound(recipe)):
        raise SettingError(f"{folder} was begun with {different} is asked for; take the same recipe, or another --out")
    for name, digest in digests(save_settings(recipe)).items():
        if written.get(OWN, {}).get(name) != digest:
            raise SettingError(
                f"{name} is not the file that {folder} was begun with; put that one back, or choose another --out"
            )
    _tell(asked, recipe, say)
    return recipe


def _tell(asked: Settings, recipe: Settings, say: Callable[[str], None]) -> None:
    for line in said_of(asked, recipe):
        say(line)
