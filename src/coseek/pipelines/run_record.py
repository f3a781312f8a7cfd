"""The record of a training folder: the recipe and the parts it was started with, without which it does not resume. And
the cards of the models that a training saves.

`auto` precisions are resolved here, once, when a folder is started.
"""

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar, cast

import torch

from coseek import __version__
from coseek.agents.protocol import tool_files
from coseek.core.errors import DataError, RetrieverError, SettingError
from coseek.core.files import (
    JsonObject,
    atomic_folder,
    atomic_write,
    check_output_folder,
    is_failed_start,
    read_jsonl,
    read_yaml,
    write_json,
    write_yaml,
)
from coseek.core.fingerprint import TOKENIZER, file_digest, fingerprint
from coseek.core.lock import Lock, kept_lock
from coseek.core.plugins import is_function, plugin_digests, plugin_name, texts_in_tree
from coseek.core.progress import NoProgress, Progress
from coseek.core.settings import (
    Settings,
    changed_settings,
    check_same_settings,
    dump_settings,
    fixed_settings,
    make_settings,
)
from coseek.data.dataset import QUESTIONS, Dataset
from coseek.data.digests import KEY, Identities, check_identities, digest, questions_digest
from coseek.data.question import load_questions
from coseek.data.run import provenance
from coseek.hardware.device import AUTO
from coseek.hardware.placement import Place, Use, named, resolve_here, warning
from coseek.hub.card import UNKNOWN, ModelCard, ModelKind, base_model_of, inert, setting_words, shared_text, shown_table
from coseek.measure.table import Table
from coseek.models.laptop import LaptopSettings
from coseek.models.model_folder import hidden_size, model_path
from coseek.pipelines.agent_check import RecipePath, paths_of
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.stages import Stage, stages_of
from coseek.pipelines.together_recipe import TogetherRecipe
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.learner.checkpoint import has_checkpoint
from coseek.training.learner.workers import ALONE, Workers
from coseek.training.rl.algorithm import spread_over_steps
from coseek.training.tracker import tracked

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
    """Held by the first worker after `begin`."""

    def __post_init__(self) -> None:
        if not self.workers.is_main:
            self.progress = NoProgress()

    def begin(self, resume: bool) -> None:
        """Lock the folder, and write the recipe into it or check that it was started with this recipe.

        The recipe is then as it is trained and stored, with `auto` precisions resolved. A resumed training keeps the
        precisions it started with. A folder that holds only the record of a failed start counts as new. Settings added
        since the start count as their defaults. Raises `DataError` and `SettingError`.
        """
        self.recipe = self.workers.broadcast(lambda: self._begin(resume))

    def _begin(self, resume: bool) -> R:
        with kept_lock(self.folder) as self._lock:
            self.check()
            path, identities = self.folder / FILE, {**self.identities()}
            check_output_folder(self.folder, FILE, own=(QUESTIONS,))
            if path.exists() and not is_failed_start(self.folder, FILE, own=(QUESTIONS,)):
                if not resume:
                    advice = "go on with --resume, or choose another --out"
                    raise DataError(f"{self.folder} holds a training run already; {advice}")
                recipe = self._resume_recipe(path, identities)
            else:
                recipe = resolve_recipe(self.recipe)
                tree: JsonObject = {"recipe": dump_settings(recipe), KEY: {**identities}, **provenance()}
                if digests := plugin_digests(self.fixed_settings(recipe)):
                    tree[OWN] = digests
                write_yaml(path, tree)
            _report_precisions(self.recipe, recipe, self.progress.say)
            return recipe

    def _resume_recipe(self, path: Path, identities: dict[str, str]) -> R:
        """The recipe of a resumed training: checked against the record, and stored in it."""
        folder, record = self.folder, read_yaml(path, "record")
        stored = resolve_recipe(make_settings(type(self.recipe), cast(JsonObject, record.get("recipe") or {}), path))
        recipe = resolve_recipe(self.recipe, stored)
        fixed = self.fixed_settings(recipe)
        check_same_settings(folder, self.fixed_settings(stored), fixed, "take the same recipe")
        recorded_plugins = cast(JsonObject, record.get(OWN) or {})
        for name, source in plugin_digests(fixed).items():
            plugin, kind = (plugin_name(name), "function") if is_function(name) else (name, "file")
            if not source:
                reason = f"its source does not identify the function {plugin}"
                raise SettingError(f"{folder} cannot be resumed: {reason}; choose another --out")
            if recorded_plugins.get(name) != source:
                raise SettingError(
                    f"{plugin} is not the {kind} that {folder} was begun with; put that one back, or choose another "
                    "--out"
                )
        check_identities(path, record.get(KEY), identities)
        self.on_resume(stored, recipe)
        recorded_identities = cast(dict[str, str], record.get(KEY) or {})
        tree: JsonObject = {**record, "recipe": dump_settings(recipe), KEY: {**recorded_identities, **identities}}
        if tree != record:
            write_yaml(path, tree)
        return recipe

    def check(self) -> None:
        """Refuse a recipe that cannot be trained, before anything is written."""

    def fixed_settings(self, recipe: R) -> JsonObject:
        """Return the settings that must not change on resume."""
        return fixed_settings(type(recipe), dump_settings(recipe))

    def identities(self) -> Identities:
        """Return the digests of what the recipe names."""
        return {}

    def on_resume(self, stored: R, recipe: R) -> None:
        """Called on resume with the stored recipe and the new one, before that is stored; may raise."""

    def model_card(
        self,
        kind: ModelKind,
        command: str,
        name: str,
        about: str,
        limits: str,
        start: str | None = None,
        facts: Mapping[str, str] = EMPTY,
        data: Mapping[str, str] = EMPTY,
        table: Table | None = None,
    ) -> ModelCard:
        """The card of the model `name`, with versions, seed, settings and input digests from the folder's record.

        `command` follows `coseek train`, and the changed settings follow it; a command that ends with `recipe.yaml` has
        them in a file. `start` is the initial model, `data` holds more digests, `table` the figures.
        """
        record = read_yaml(self.folder / FILE, "record of a training") if (self.folder / FILE).exists() else {}
        versions = cast(dict[str, str | None], record.get("versions") or {"coseek": __version__})
        digests = {**cast(dict[str, str], record.get(KEY) or {}), **data}
        changes, in_file = changed_settings(self.recipe), command.endswith("recipe.yaml")
        overrides = () if in_file else setting_words(changes)
        folder_of = encoder_folder if kind == "encoder" else model_path
        return ModelCard(
            kind=kind,
            title=f"{self.folder.resolve().name}: {name}",
            about=about,
            facts={
                **facts,
                "seed": str(getattr(self.recipe, "seed", "")),
                "begins with": "" if start is None else shared_text(start),
                "coseek": " ".join(filter(None, (versions.get("coseek"), cast("str | None", record.get("commit"))))),
                **{name: version for name in ("torch", "transformers") if (version := versions.get(name))},
                **{f"digest of {shared_text(name)}": identity for name, identity in digests.items()},
            },
            command=shlex.join(["coseek", "train", *command.split(), *overrides, "--out", "OUT"]),
            recipe=changes if in_file else None,
            figures="" if table is None else shown_table(table),
            limits=limits,
            base_model=None if start is None else base_model_of(start, folder_of(start)),
            license=str(getattr(self.recipe, "license", UNKNOWN)),
        )


@contextmanager
def threads_and_trackers(training: TrainingRun[AgentRecipe] | TrainingRun[RetrieverRecipe]) -> Iterator[None]:
    """Set torch's threads, and send metrics to the recipe's trackers (first worker only) inside the block."""
    recipe = training.recipe
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    trackers = recipe.track if training.workers.is_main else ()
    with tracked(trackers, training.folder, dump_settings(recipe), training.progress.say):
        yield


def write_tables(folder: Path, markdown: str, values: JsonObject) -> None:
    """Write `table.md` and `table.json`."""
    with atomic_write(folder / "table.md") as file:
        file.write(markdown)
    write_json(folder / "table.json", values)


def resolve_recipe(recipe: R, stored: R | None = None) -> R:
    """Replace every `auto` by a precision: that of `stored`, else the fastest one on this machine."""
    stored_tree = dump_settings(stored) if stored is not None else None
    return resolve_here(recipe, stored_tree, lambda path: _width_at(recipe, path))


def _width_at(recipe: Settings, path: Place) -> int:
    """Hidden size of the model that samples in the precision at this place; 0 without a model on this machine."""
    match recipe:
        case TogetherRecipe():
            return _width_at(recipe.agent, path[1:])
        case AgentRecipe() if path[0] == "graders":
            graders = (recipe.graders.generator, recipe.graders.judge)
            widths = [hidden_size(model_path(grader.model)) for grader in graders if grader is not None]
            return min(filter(None, widths), default=0)
        case AgentRecipe():
            folder = recipe.policy.folder
            return recipe.policy.laptop.hidden if folder is None else hidden_size(model_path(folder))
    laptop = getattr(recipe, "laptop", None)  # the shape of a small reader
    return laptop.hidden if isinstance(laptop, LaptopSettings) else 0


def _report_precisions(unresolved: Settings, resolved: Settings, say: Callable[[str], None]) -> None:
    """Report the precisions that `auto` resolves to, and warn about one that is slow on this machine."""
    auto_paths = {path for path, _, value in named(type(unresolved), dump_settings(unresolved)) if value == AUTO}
    precisions: dict[Use, set[str]] = {}
    for path, use, value in named(type(resolved), dump_settings(resolved)):
        if path in auto_paths:
            precisions.setdefault(use, set()).add(value)
    if precisions:
        summaries = (f"{use} in {' and '.join(sorted(precisions[use]))}" for use in sorted(precisions))
        say(f"auto precision: {', '.join(summaries)}")
    if line := warning(resolved):
        say(line)


# Resuming: digests of the paths that a recipe names, which must not change; and more steps for a finished stage. There
# is no digest of a data set's corpus (its index stores one) and of models behind a URL.
#
# `rl.steps` of the last stage that has started may change, unless a schedule spans the steps. The stage continues from
# its last checkpoint. Its old policy gets another name, and the table is measured again.

NOT_READ = ("data.folder", "data.index", "table.select.ids")


def agent_identities(recipe: AgentRecipe, index: Retriever | None) -> Identities:
    """Setting → digest. `index` is what `data.index` names, opened."""
    protocols = (recipe.protocol, *(recipe.warm_start.also if recipe.warm_start else ()))
    files = {str(path): path for name in protocols for path in tool_files(name)}
    texts = texts_in_tree(dump_settings(recipe))  # protocols, prompt templates and prompts
    files |= {text: Path(text).expanduser() for text in texts if text.endswith((".yaml", ".yml"))}
    digests = path_identities(recipe) | {name: file_digest(path) for name, path in files.items() if path.is_file()}
    if index is not None:
        with suppress(RetrieverError):  # the server does not answer; its searches will be faults
            digests["data.index"] = index.identity
    return digests


def data_set_identities(setting: str, name: str) -> Identities:
    """Setting and file → digest, of the corpus and the questions of a data set."""
    folder = Path(name).expanduser()
    files = (Dataset(folder).corpus_path, *sorted(folder.glob("questions.*.jsonl")))
    return {f"{setting} {path.name}": file_digest(path) for path in files}


def policy_identities(policy: Path, tokenizer: Path, temperature: float, precision: str) -> dict[str, str]:
    """Digests of the weights, tokenizer and sampling of a policy, for `Agent.identities`."""
    sampling = f"temperature {temperature:g}, precision {precision}"
    return {"agent": fingerprint(policy), "tokenizer": fingerprint(tokenizer, TOKENIZER), "sampling": sampling}


def content_of(path: Path) -> str:
    """Digest of a model folder, or of a YAML file and the folders it names."""
    if path.is_dir():
        return fingerprint(path)
    with suppress(DataError):
        folders = [model_path(text) for text in texts_in_tree(read_yaml(path, "file"))]
        return digest("".join([file_digest(path), *(fingerprint(folder) for folder in folders if folder.is_dir())]))
    return file_digest(path)


def path_identities(recipe: AgentRecipe) -> dict[str, str]:
    """Digests of the paths that a recipe names, by setting; where a setting names several, by each of them. The index
    is opened once, elsewhere."""
    entries = [entry for entry in paths_of(recipe) if entry.setting not in NOT_READ]
    named = Counter(entry.setting for entry in entries)
    return {
        entry.setting if named[entry.setting] == 1 else f"{entry.setting} {entry.path}": _identity_of(entry)
        for entry in entries
    }


def _identity_of(entry: RecipePath) -> str:
    if entry.kind == "data":
        return questions_digest(load_questions(entry.path))
    if entry.kind == "index":
        return open_retriever(entry.path).identity
    return file_digest(entry.path / "trajectories.jsonl") if entry.kind == "run" else content_of(entry.path)


def take_more_steps(stored: AgentRecipe, recipe: AgentRecipe, folder: Path, is_scheduled: Callable[[], bool]) -> None:
    """Check the stages whose `rl.steps` a resumed training changes, then rename their policies.

    `is_scheduled`: whether the training retriever follows a schedule over the steps. Raises `SettingError`.
    """
    stages = stages_of(recipe, folder)
    renamed_policies: list[tuple[Path, int]] = []
    for number, (old_stage, stage) in enumerate(zip(stages_of(stored, folder), stages, strict=True)):
        policy, old_steps = folder / "policy" / stage.trained_policy, old_stage.recipe.rl.steps
        if old_steps == stage.recipe.rl.steps or not steps_done(stage):
            continue
        if problem := _problem_of_more_steps(stage, stages[number + 1 :], is_scheduled):
            name = f"stages.{stage.name}.rl.steps" if stage.name else "rl.steps"
            raise SettingError(
                f"{name} cannot change from {old_steps} to {stage.recipe.rl.steps} in {folder}: {problem}; "
                f"choose another --out (policy.folder={policy} begins with its policy)"
            )
        renamed_policies.append((policy, old_steps))
    for policy, old_steps in renamed_policies:
        if policy.exists():
            old_policy = policy.with_name(f"{policy.name}.{old_steps}-steps")
            if old_policy.exists():  # the steps were raised, lowered and raised again
                shutil.rmtree(old_policy)
            os.replace(policy, old_policy)


def _problem_of_more_steps(stage: Stage, later_stages: Sequence[Stage], is_scheduled: Callable[[], bool]) -> str:
    """Why the steps of a stage cannot change; empty if they can."""
    done_steps = steps_done(stage)
    if stage.recipe.rl.steps < done_steps:
        return f"{done_steps} steps are taken already"
    if spread := spread_over_steps(stage.recipe.rl) or ("data.training_retriever" if is_scheduled() else ""):
        return f"{spread} spreads a schedule over all steps, and the {done_steps} steps so far followed another one"
    if started_stage := next((follower for follower in later_stages if follower.folder.exists()), None):
        return f"the stage {started_stage.name} has already started from the policy of this one"
    checkpoints = stage.folder / "checkpoints"
    exists = has_checkpoint(checkpoints) or (checkpoints / "latest_checkpointed_iteration.txt").is_file()  # verl's
    return "" if exists else f"{checkpoints} holds no checkpoint to go on from"


def steps_done(stage: Stage) -> int:
    """Steps of reinforcement learning in a stage's metrics; 0 for rejection sampling."""
    if stage.recipe.learn == "rejection":
        return 0
    paths = stage.folder.glob("metrics*.jsonl")  # verl writes one at every start
    return max((int(str(row.get("step", 0))) for path in paths for _, row in read_jsonl(path)), default=0)


# Cards of policy folders, with figures after the measurement.

HEALTHY = "-healthy"
"""Ending of a policy that was saved before the monitor stopped the training."""
LEARNT = {"rl": "reinforcement learning", "rejection": "rejection sampling", "demonstrations": "nothing more"}
ABOUT = "A language model that searches before it answers, trained by coseek."
LIMITS = (
    "The figures hold for these questions, this retriever and these budgets; other text, languages and retrievers were "
    "not measured. It speaks the protocol above and follows no other instructions. Answers may be wrong, also where "
    "passages say otherwise; nothing was done against harmful text."
)


def write_policy_card(
    training: TrainingRun[AgentRecipe], name: str, folder: Path, data: Path, table: Table | None = None, row: str = ""
) -> None:
    """Write the card of the policy `name` into its folder; `row` is its row in the table of figures.

    A folder outside of the training's is not changed: it is the initial model of the recipe.
    """
    recipe = training.recipe
    if not folder.resolve().is_relative_to(training.folder.resolve()):
        return
    start = recipe.policy.folder
    splits = (recipe.data.train, recipe.data.dev, recipe.data.test)
    files = [path for split in splits if (path := data / f"questions.{split}.jsonl").is_file()]
    digests = {path.name: file_digest(path) for path in files}
    retriever = recipe.data.index or recipe.data.retriever
    engine = recipe.data.training_retriever
    facts = {
        "recipe": recipe.about,
        "learnt by": " → ".join(_history_of(recipe, training.folder, name)) or "nothing: an untrained model",
        "protocol": f"{recipe.protocol}, prompt template {recipe.prompt_template}",
        "retriever": f"{retriever}, in training {engine.get('retriever')}" if engine else retriever,
    }
    card = training.model_card("policy", "agent recipe.yaml", name, ABOUT, LIMITS, start, facts, digests, table)
    if row and card.figures:
        card = replace(card, figures=f"This model is the row {inert(row)}.\n\n{card.figures}")
    card.write(folder)


def _history_of(recipe: AgentRecipe, folder: Path, name: str) -> Iterator[str]:
    """The trainings of a policy, in order."""
    if name == "start":
        return
    if recipe.warm_start is not None:
        yield f"supervised training on demonstrations ({recipe.warm_start.demonstrator})"
    if name == "warm":
        return
    for stage in stages_of(recipe, folder):
        of_stage = f" (stage {stage.name})" if stage.name else ""
        healthy_note = " until the monitor stopped it" if name == stage.trained_policy + HEALTHY else ""
        yield f"{LEARNT[stage.recipe.learn]}{of_stage}{healthy_note}"
        if stage.trained_policy == name.removesuffix(HEALTHY):
            return


def take_weights(source: Path, target: Path, complete: Callable[[Path], None]) -> None:
    """Copy the weights of a backend's training loop to a policy's folder. `complete` adds tokenizer and cards."""
    if not any(source.glob("*.safetensors")):
        raise DataError(f"{source} holds no weights; it must be of a training by this recipe's rl.backend")

    def fill(copy: Path) -> None:
        for path in source.iterdir():
            if path.suffix in (".safetensors", ".json") and "token" not in path.name:
                shutil.copy2(path, copy / path.name)
        complete(copy)

    atomic_folder(target, fill)
