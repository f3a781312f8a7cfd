"""Resumption: digests of what a recipe names by path, which a resumed run must find unchanged; settings that may change
when an agent's training resumes, and more steps for a finished stage.

Not digested: the sources of an import (the imported data set counts), a data set's corpus (its index stores the corpus'
digest) and models behind a URL. May change:

    rl.monitor, rl.keep_rollouts         always: they change no weight
    table.wide_rag, track, license       always, likewise
    rollout, rl.backend_settings         always: servers come and go
    rl.steps                             of the last stage that has started, unless a schedule spans the steps

A stage with more steps continues from its last checkpoint. Its old policy is kept under another name, and the table is
measured again.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from coseek.agents.protocol import tool_files
from coseek.core.errors import DataError, RetrieverError, SettingError
from coseek.core.files import Json, JsonObject, read_jsonl, read_yaml
from coseek.core.fingerprint import TOKENIZER, file_digest, fingerprint
from coseek.core.settings import dump_settings
from coseek.data.dataset import Dataset
from coseek.data.digests import Identities, digest, questions_digest
from coseek.data.question import load_questions
from coseek.labels.label_folder import LabelFolder
from coseek.models.model_folder import model_path
from coseek.pipelines.agent_recipe import AgentRecipe, RecipePath, paths_of
from coseek.pipelines.stages import Stage, stages_of
from coseek.pipelines.together_recipe import TogetherRecipe
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.rl.algorithm import spread_over_steps
from coseek.training.trainer.checkpoint import has_checkpoint

NOT_READ = ("data.imported.sources", "data.folder", "data.index")


def agent_identities(recipe: AgentRecipe, index: Retriever | None) -> Identities:
    """Setting → digest. `index` is what `data.index` names, opened."""
    found = {**_named(recipe), **_tools(recipe)}
    for text in _texts(dump_settings(recipe)):  # protocols, prompt templates and prompts
        if text.endswith((".yaml", ".yml")) and (path := Path(text).expanduser()).is_file():
            found[text] = file_digest(path)
    if index is not None:
        with suppress(RetrieverError):  # a server that does not answer now: its searches will be faults
            found["data.index"] = index.identity
    return found


def data_set_identities(setting: str, name: str) -> Identities:
    """Setting and file → digest, of the corpus and the questions of a data set."""
    folder = Path(name).expanduser()
    files = (Dataset(folder).corpus_path, *sorted(folder.glob("questions.*.jsonl")))
    return {f"{setting} {path.name}": file_digest(path) for path in files}


def retriever_identities(recipe: RetrieverRecipe) -> Identities:
    """Setting → digest."""
    found = {f"labels {name}": file_digest(LabelFolder(Path(name)).sets_path) for name in recipe.labels}
    if recipe.encoder is not None:
        found["encoder"] = fingerprint(encoder_folder(recipe.encoder))
    if recipe.data is not None:
        found |= data_set_identities("data.folder", recipe.data.folder)
    if recipe.held_out.corpus is not None:
        path = Path(recipe.held_out.corpus)
        found["held_out.corpus"] = file_digest(path / "corpus.jsonl" if path.is_dir() else path)
    return found


def together_identities(recipe: TogetherRecipe) -> Identities:
    """Setting → digest, of what all rounds share. The agent and retriever trainings record their own."""
    found = {f"agent.{name}": identity for name, identity in _named(recipe.agent).items()}
    for setting, name in (("labels.scorer", recipe.labels.scorer), ("labels.likelihood", recipe.labels.likelihood)):
        if name is not None and (path := model_path(name)).exists():
            found[setting] = content_of(path)
    if recipe.start.encoder is not None:
        found["start.encoder"] = fingerprint(encoder_folder(recipe.start.encoder))
    return found


def policy_identities(policy: Path, tokenizer: Path, temperature: float, precision: str) -> dict[str, str]:
    """Digests of the weights, tokenizer and sampling of a policy, for `Agent.identities`."""
    sampling = f"temperature {temperature:g}, precision {precision}"
    return {"agent": fingerprint(policy), "tokenizer": fingerprint(tokenizer, TOKENIZER), "sampling": sampling}


def content_of(path: Path) -> str:
    """Digest of a model folder, or of a YAML file and the folders it names."""
    if path.is_dir():
        return fingerprint(path)
    with suppress(DataError):
        named = [model_path(text) for text in _texts(read_yaml(path, "file"))]
        return digest("".join([file_digest(path), *(fingerprint(folder) for folder in named if folder.is_dir())]))
    return file_digest(path)


def _named(recipe: AgentRecipe) -> dict[str, str]:
    """Digests of the paths that a recipe names; the index is opened once, elsewhere."""
    return {named.setting: _identity(named) for named in paths_of(recipe) if named.setting not in NOT_READ}


def _identity(named: RecipePath) -> str:
    if named.holds == "data":
        return questions_digest(load_questions(named.path))
    if named.holds == "index":
        return open_retriever(named.path).identity
    return file_digest(named.path / "trajectories.jsonl") if named.holds == "run" else content_of(named.path)


def _tools(recipe: AgentRecipe) -> dict[str, str]:
    """The `.py` files of the tools of the protocols that a recipe names, each with the digest of its bytes."""
    protocols = (recipe.protocol, *(recipe.warm_start.also if recipe.warm_start else ()))
    return {str(path): file_digest(path) for name in protocols for path in tool_files(name) if path.is_file()}


def _texts(tree: Json) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(value)


FREE = {"rl": ("monitor", "keep_rollouts", "backend_settings"), "table": ("wide_rag",)}
"""Settings that may always change: they change no weight, or say where a server is."""
STEPS = {**FREE, "rl": (*FREE["rl"], "steps")}
"""The same with the setting that `MoreSteps` checks."""


def bound(recipe: AgentRecipe) -> JsonObject:
    """The settings of a recipe and of its stages that must not change on resume."""
    tree = dump_settings(recipe)
    del tree["track"], tree["rollout"], tree["license"]
    for part in (tree, *cast(dict[str, JsonObject], tree["stages"]).values()):
        for group, names in STEPS.items():
            if isinstance(settings := part.get(group), dict):
                part[group] = {name: value for name, value in settings.items() if name not in names}
                if not part[group]:  # equals a stage that does not set the group
                    del part[group]
    return tree


@dataclass(frozen=True)
class MoreSteps:
    """A change of `rl.steps` on resume."""

    recipe: AgentRecipe
    folder: Path
    follows: Callable[[], bool]
    """Whether the training retriever follows a schedule over the steps."""

    def take(self, began: AgentRecipe) -> None:
        """Check the changed stages, then move their policies aside. Raises `SettingError`."""
        pairs = list(zip(stages_of(began, self.folder), stages_of(self.recipe, self.folder), strict=True))
        changed = [
            (place, old, new)
            for place, (old, new) in enumerate(pairs)
            if old.recipe.rl.steps != new.recipe.rl.steps and steps_done(new)
        ]
        for place, old, new in changed:
            self._check(old, new, [stage for _, stage in pairs[place + 1 :]])
        for _, old, new in changed:
            policy = self.folder / "policy" / new.ends
            if policy.exists():
                kept = policy.with_name(f"{new.ends}.{old.recipe.rl.steps}-steps")
                if kept.exists():  # the steps were raised, lowered and raised again
                    shutil.rmtree(kept)
                os.replace(policy, kept)

    def _check(self, old: Stage, new: Stage, later: list[Stage]) -> None:
        done, steps = steps_done(new), new.recipe.rl.steps
        name = f"stages.{new.name}.rl.steps" if new.name else "rl.steps"
        what = f"{name} cannot change from {old.recipe.rl.steps} to {steps} in {self.folder}"
        way_out = f"choose another --out (policy.folder={self.folder / 'policy' / new.ends} begins with its policy)"
        problem = ""
        if steps < done:
            problem = f"{done} steps are taken already"
        elif spread := spread_over_steps(new.recipe.rl) or ("data.training_retriever" if self.follows() else ""):
            problem = f"{spread} spreads a schedule over all steps, and the {done} steps so far followed another one"
        elif begun := next((stage for stage in later if stage.folder.exists()), None):
            problem = f"the stage {begun.name} has already started from the policy of this one"
        elif not has_checkpoint(new.folder / "checkpoints"):
            problem = f"{new.folder / 'checkpoints'} holds no checkpoint to go on from"
        if problem:
            raise SettingError(f"{what}: {problem}; {way_out}")


def steps_done(stage: Stage) -> int:
    """Steps of reinforcement learning in a stage's metrics; 0 for rejection sampling."""
    path = stage.folder / "metrics.jsonl"
    if stage.recipe.learn == "rejection" or not path.exists():
        return 0
    return max((int(str(row.get("step", 0))) for _, row in read_jsonl(path)), default=0)
