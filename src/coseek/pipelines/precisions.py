"""Precisions: what `auto` comes to in a recipe. No torch in here; a recipe that says `auto` wakes it."""

from pathlib import Path
from typing import TypeVar

from coseek.core.settings import Settings, dump_settings
from coseek.hardware.precision import AUTO, Place, Use, named
from coseek.hardware.speed import resolve_here, warning
from coseek.models.shape import hidden_size
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.generator_recipe import GeneratorRecipe
from coseek.pipelines.grader_settings import GraderSettings
from coseek.pipelines.together_recipe import TogetherRecipe

R = TypeVar("R", bound=Settings)


def resolve_recipe(recipe: R, began: R | None = None) -> R:
    """The recipe with the name of a precision in place of every `auto`: the one that the run was begun with, or what
    is fastest on this machine."""
    old = dump_settings(began) if began is not None else None
    return resolve_here(recipe, old, lambda place: width_at(recipe, place))


def width_at(recipe: Settings, place: Place) -> int:
    """Width of the model that is sampled with the precision at this place; 0 where there is none on this machine."""
    match recipe:
        case TogetherRecipe():
            return width_at(recipe.agent, place[1:])
        case GeneratorRecipe():
            return recipe.laptop.hidden
        case AgentRecipe() if place[0] == "graders":
            return min(_frozen(recipe.graders), default=0)
        case AgentRecipe():
            folder = recipe.policy.folder
            return recipe.policy.laptop.hidden if folder is None else hidden_size(Path(folder).expanduser())
    return 0


def _frozen(settings: GraderSettings) -> list[int]:
    """Widths of the frozen models that are folders."""
    parts = [part for part in (settings.generator, settings.judge) if part is not None]
    widths = [hidden_size(Path(part.model).expanduser()) for part in parts]
    return [width for width in widths if width]


def said_of(asked: Settings, settled: Settings) -> list[str]:
    """What whoever starts a run is told: what `auto` came to, and a name that is slow here."""
    wishes = {place for place, _, value in named(type(asked), dump_settings(asked)) if value == AUTO}
    taken: dict[Use, set[str]] = {}
    for place, use, value in named(type(settled), dump_settings(settled)):
        if place in wishes:
            taken.setdefault(use, set()).add(value)
    lines = ["auto precision: " + ", ".join(f"{use} in {' and '.join(sorted(taken[use]))}" for use in sorted(taken))]
    return [line for line in (*(lines if taken else []), warning(settled)) if line]
