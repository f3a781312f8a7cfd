"""The record of a training folder: the recipe and the parts it was started with. A run resumes with nothing else.

`auto` precisions are resolved here, once, when a folder is started.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar, cast

from coseek import __version__
from coseek.core.errors import DataError, SettingError
from coseek.core.files import (
    JsonObject,
    atomic_write,
    check_output_folder,
    is_failed_start,
    read_yaml,
    write_json,
    write_yaml,
)
from coseek.core.lock import Lock, kept_lock
from coseek.core.plugins import is_function, plugin_digests, plugin_name
from coseek.core.progress import NoProgress, Progress
from coseek.core.settings import Settings, changed_settings, check_same_settings, dump_settings, make_settings
from coseek.data.dataset import QUESTIONS
from coseek.data.digests import KEY, Identities, check_identities
from coseek.data.run import provenance
from coseek.hardware.device import AUTO
from coseek.hardware.precision import Place, Use, named, resolve_here, warning
from coseek.hub.card import UNKNOWN, ModelCard, ModelKind, setting_words, shared_text
from coseek.models.model_folder import hidden_size, model_path
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.reader_recipes import GeneratorRecipe
from coseek.pipelines.together_recipe import TogetherRecipe
from coseek.training.trainer.workers import ALONE, Workers

FILE = "recipe.yaml"
"""The recipe, versions and commit, and digests of what the recipe names: Python files, models, questions, indexes."""
OWN = "own_parts"
EMPTY: Mapping[str, str] = MappingProxyType({})

R = TypeVar("R", bound=Settings)


@dataclass
class TrainingRun(Generic[R]):
    """One training of a recipe in a folder."""

    recipe: R
    folder: Path
    progress: Progress = field(default_factory=NoProgress)
    workers: Workers = ALONE
    """The first worker writes files and reports progress; the others only share the updates."""
    _lock: Lock | None = field(default=None, init=False, repr=False, compare=False)
    """Held by the first worker from `begin` on."""

    def __post_init__(self) -> None:
        if not self.workers.first:
            self.progress = NoProgress()

    def begin(self, resume: bool) -> None:
        """Lock the folder, and write the recipe into it or check that it was started with this recipe: see `begin`."""
        self.recipe = self.workers.agree(lambda: self._begin(resume))

    def _begin(self, resume: bool) -> R:
        with kept_lock(self.folder) as self._lock:
            self.check()
            return begin(
                self.folder, self.recipe, resume, self.bound, self.identities(), self.on_resume, self.progress.say
            )

    def check(self) -> None:
        """Refuse a recipe that cannot be trained, before anything is written."""

    def bound(self, recipe: R) -> JsonObject:
        """Return the settings that must not change on resume."""
        return {name: value for name, value in dump_settings(recipe).items() if name != "license"}

    def identities(self) -> Identities:
        """Return the digests of what the recipe names."""
        return {}

    def on_resume(self, began: R, recipe: R) -> None:
        """Called on resume with the stored recipe and the new one; may raise."""

    def model_card(
        self, kind: ModelKind, command: str, start: str | None = None, data: Mapping[str, str] = EMPTY
    ) -> ModelCard:
        """A card with what the record of the folder tells: versions, seed, settings, digests of what was read.

        `command` is what stands behind `coseek train`; the settings follow it, or stand in a file for `recipe.yaml`.
        `start` is the model that training began with, and `data` are more digests.
        """
        record = read_yaml(self.folder / FILE, "record of a training") if (self.folder / FILE).exists() else {}
        versions = cast(dict[str, str | None], record.get("versions") or {"coseek": __version__})
        digests = {**cast(dict[str, str], record.get(KEY) or {}), **data}
        recipe, in_file = changed_settings(self.recipe), command.endswith("recipe.yaml")
        given = () if in_file else setting_words(recipe)
        return ModelCard(
            kind=kind,
            title=self.folder.resolve().name,
            about="",
            facts={
                "seed": str(getattr(self.recipe, "seed", "")),
                "begins with": "" if start is None else shared_text(start),
                "coseek": " ".join(filter(None, (versions.get("coseek"), cast("str | None", record.get("commit"))))),
                **{name: version for name in ("torch", "transformers") if (version := versions.get(name))},
                **{f"digest of {shared_text(name)}": identity for name, identity in digests.items()},
            },
            command=shlex.join(["coseek", "train", *command.split(), *given, "--out", "OUT"]),
            recipe=recipe if in_file else None,
            license=str(getattr(self.recipe, "license", UNKNOWN)),
        )


def begin(
    folder: Path,
    recipe: R,
    resume: bool,
    bound: Callable[[R], JsonObject] = dump_settings,
    identities: Identities | None = None,
    on_resume: Callable[[R, R], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> R:
    """Write the recipe into a new folder, or check that the folder was started with this recipe.

    Returns the recipe as it is trained and stored, with `auto` precisions resolved. A resumed run keeps the precisions
    it started with. A folder that holds only the record of a failed start counts as new. `bound` gives the settings
    that must not change on resume; settings added since the start count as their defaults. `identities` must equal
    those of the start. `on_resume` is called with the stored and the new recipe after all checks and before the new one
    is stored; it may raise. Raises `DataError` and `SettingError`.
    """
    path, now = folder / FILE, dict(identities or {})
    check_output_folder(folder, FILE, own=(QUESTIONS,))
    asked = recipe
    if not path.exists() or is_failed_start(folder, FILE):
        recipe = resolve_recipe(asked)
        tree: JsonObject = {"recipe": dump_settings(recipe), KEY: {**now}, **provenance()}
        if own := plugin_digests(bound(recipe)):
            tree[OWN] = own
        write_yaml(path, tree)
        _report_precisions(asked, recipe, say)
        return recipe
    if not resume:
        raise DataError(f"{folder} holds a training run already; go on with --resume, or choose another --out")
    written = read_yaml(path, "record")
    began = resolve_recipe(make_settings(type(recipe), cast(JsonObject, written.get("recipe") or {}), path))
    recipe = resolve_recipe(asked, began)
    check_same_settings(folder, bound(began), bound(recipe), "take the same recipe")
    own_began = cast(JsonObject, written.get(OWN) or {})
    for name, digest in plugin_digests(bound(recipe)).items():
        part, what = (plugin_name(name), "function") if is_function(name) else (name, "file")
        if not digest:
            raise SettingError(
                f"{folder} cannot be resumed: its source does not identify the function {part}; choose another --out"
            )
        if own_began.get(name) != digest:
            raise SettingError(
                f"{part} is not the {what} that {folder} was begun with; put that one back, or choose another --out"
            )
    check_identities(path, written.get(KEY), now)
    if on_resume is not None:
        on_resume(began, recipe)
    known = cast(dict[str, str], written.get(KEY) or {})
    tree = {**written, "recipe": dump_settings(recipe), KEY: {**known, **now}}
    if tree != written:
        write_yaml(path, tree)
    _report_precisions(asked, recipe, say)
    return recipe


def write_tables(folder: Path, markdown: str, values: JsonObject) -> None:
    """Write `table.md` and `table.json`."""
    with atomic_write(folder / "table.md") as file:
        file.write(markdown)
    write_json(folder / "table.json", values)


def resolve_recipe(recipe: R, began: R | None = None) -> R:
    """Replace every `auto` by a precision: that of `began`, else the fastest one on this machine."""
    old = dump_settings(began) if began is not None else None
    return resolve_here(recipe, old, lambda place: _width_at(recipe, place))


def _width_at(recipe: Settings, place: Place) -> int:
    """Hidden size of the model that samples in the precision at this place; 0 without a model on this machine."""
    match recipe:
        case TogetherRecipe():
            return _width_at(recipe.agent, place[1:])
        case GeneratorRecipe():
            return recipe.laptop.hidden
        case AgentRecipe() if place[0] == "graders":
            graders = (recipe.graders.generator, recipe.graders.judge)
            widths = [hidden_size(model_path(part.model)) for part in graders if part is not None]
            return min(filter(None, widths), default=0)
        case AgentRecipe():
            folder = recipe.policy.folder
            return recipe.policy.laptop.hidden if folder is None else hidden_size(model_path(folder))
    return 0


def _report_precisions(asked: Settings, resolved: Settings, say: Callable[[str], None]) -> None:
    """Report which precisions `auto` stands for, and warn of one that is slow on this machine."""
    auto = {place for place, _, value in named(type(asked), dump_settings(asked)) if value == AUTO}
    taken: dict[Use, set[str]] = {}
    for place, use, value in named(type(resolved), dump_settings(resolved)):
        if place in auto:
            taken.setdefault(use, set()).add(value)
    if taken:
        say("auto precision: " + ", ".join(f"{use} in {' and '.join(sorted(taken[use]))}" for use in sorted(taken)))
    if line := warning(resolved):
        say(line)
