"""Fitting: which changes of settings let a recipe fit the machine that it names."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.core.settings import apply_overrides, dump_settings, make_settings
from coseek.core.text import counted
from coseek.models.model_folder import Shape
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.estimate import local_graders, memory_of, shape_of, shown_gib
from coseek.pipelines.stages import stages_of
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.trainer.settings import GIB

FULL = 0.9
"""Share of a device's memory that a recipe may need by the estimate: the rest is for what it leaves out."""
SERVER = "http://127.0.0.1:8000"
MOST_DEVICES = 64


def share_of(recipe: AgentRecipe, shape: Shape) -> float:
    """The share of a device's memory that the recipe needs."""
    return memory_of(recipe, shape).needed / GIB / recipe.machine.memory_gib


def with_processes(recipe: AgentRecipe, processes: int) -> AgentRecipe:
    """The recipe on as many devices as there are processes."""
    return recipe.model_copy(update={"machine": recipe.machine.model_copy(update={"devices": processes})})


def started_with(processes: int) -> str:
    """Return the beginning of a command that starts `processes` processes."""
    return f"torchrun --standalone --nproc-per-node {processes} -m coseek train …"


def way_out_here(recipe: AgentRecipe, shape: Shape, processes: int) -> str:
    """A sentence that names what lets the recipe fit with these processes; empty if it fits."""
    here = with_processes(recipe, processes)
    if share_of(here, shape) <= FULL:
        return ""
    if processes < recipe.machine.devices and share_of(recipe, shape) <= FULL:
        return f"it fits with {recipe.machine.devices} processes: {started_with(recipe.machine.devices)}"
    return ways_out(here, shape)


def check_fits(recipe: AgentRecipe, processes: int, available_gib: float) -> None:
    """Refuse a training in this process that needs more memory than there is, by the estimate; not where the shape of
    the model is unknown, or where another program trains it."""
    if not recipe.machine.check:
        return
    for stage in [one.recipe for one in stages_of(recipe, Path())] or [recipe]:
        if stage.learn == "rl" and stage.rl.backend != "local":
            continue
        with suppress(DataError):  # an unknown shape
            shape, _ = shape_of(stage)
            needed = memory_of(with_processes(stage, processes), shape).needed
            if needed > available_gib * GIB:
                way = way_out_here(stage, shape, processes) or "take a machine with more memory"
                raise SettingError(
                    f"with {counted(processes, 'process')} the training needs about {shown_gib(needed)} GiB on each "
                    f"device, and there are {available_gib:.3g}: {way} (machine.check=false trains all the same)"
                )


def ways_out(recipe: AgentRecipe, shape: Shape) -> str:
    """A sentence that names changes with which the recipe fits; empty if it fits.

    Changes that suffice alone are alternatives. If none does, changes are added one after another.
    """
    if share_of(recipe, shape) <= FULL:
        return ""
    alone: dict[str, list[str]] = {}
    for kind, change in _changes(recipe, shape):
        if kind not in alone and share_of(changed(recipe, change), shape) <= FULL:
            alone[kind] = change
    if alone:
        return "it fits with " + ", or with ".join(" ".join(change) for change in alone.values())
    for left_out in ("lora", "devices", ""):
        if together := _together(recipe, shape, left_out):
            return f"it fits with {' '.join(together)}"
    return "no change that is known makes it fit; take a smaller model or devices with more memory"


def _together(recipe: AgentRecipe, shape: Shape, left_out: str) -> list[str]:
    """Changes with which the recipe fits, added one after another as long as each helps, without those that the later
    ones made needless. Empty if all are not enough."""
    taken: dict[str, str] = {}
    begun = recipe
    # Settings depend on one another: the room of the cache follows from all others. So they are tried twice.
    for _ in range(2):
        for kind, change in [*_changes(recipe, shape)]:
            tried = changed(recipe, change)
            if kind != left_out and share_of(tried, shape) < share_of(recipe, shape) - 1e-9:
                taken |= {one.partition("=")[0]: one for one in change}
                recipe = tried
            if share_of(recipe, shape) <= FULL:
                for setting in [*taken]:
                    others = [one for name, one in taken.items() if name != setting]
                    if share_of(changed(begun, others), shape) <= FULL:
                        del taken[setting]
                return [*taken.values()]
    return []


def changed(recipe: AgentRecipe, overrides: Sequence[str]) -> AgentRecipe:
    return make_settings(AgentRecipe, apply_overrides(dump_settings(recipe), overrides, AgentRecipe))


def _changes(recipe: AgentRecipe, shape: Shape) -> Iterator[tuple[str, list[str]]]:
    """Changes to try, those that change least first: the kind of each and its overrides."""
    paths = _learners(recipe)
    tree = dump_settings(recipe)
    yield "servers", [f"{path}={SERVER}" for path in local_graders(recipe)]
    memory = memory_of(recipe, shape)
    room = FULL * recipe.machine.memory_gib - (memory.held + memory.sampler) / GIB
    if room >= 0.1:
        yield "cache", [f"cache_gib={int(10 * room) / 10:g}"]
    for divisor in (2, 4, 8):
        tokens = [cast(int, _at(tree, path)["micro_batch_tokens"]) for path in paths]
        pairs = zip(paths, tokens, strict=True)
        yield "rows", [f"{path}.micro_batch_tokens={max(1, count // divisor)}" for path, count in pairs]
    yield "checkpointing", [f"{path}.checkpointing=true" for path in paths]
    if recipe.machine.devices > 1:
        yield "shards", [f"{path}.workers=fsdp2" for path in paths]
    devices = recipe.machine.devices
    while devices < MOST_DEVICES:
        devices *= 2
        yield "devices", [f"machine.devices={devices}", *(f"{path}.workers=fsdp2" for path in paths)]
    yield "lora", [f"{path}.lora={{rank: 16}}" for path in paths]


def _learners(recipe: AgentRecipe) -> list[str]:
    """Names of the settings of all learners."""
    paths = ["warm_start.sft.learner"] if recipe.warm_start is not None else []
    if recipe.learn == "rl":
        paths += ["rl.policy", *(["rl.critic"] if open_algorithm(recipe.rl).needs_critic else [])]
    return paths + (["rejection.sft.learner"] if recipe.learn == "rejection" else [])


def _at(tree: JsonObject, path: str) -> JsonObject:
    for name in path.split("."):
        tree = cast(JsonObject, tree[name])
    return tree
