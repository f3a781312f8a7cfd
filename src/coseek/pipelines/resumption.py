"""Settings that may change when an agent's training resumes, and more steps for a finished stage.

    rl.monitor, rl.keep_rollouts         always: they change no weight
    table.wide_rag, track, license       always, likewise
    rollout, rl.backend_settings         always: servers come and go
    rl.steps                             of the last stage that has started, unless a schedule spans the steps

A stage with more steps continues from its last checkpoint. Its old policy is kept under another name, and the table is
measured again.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject, read_jsonl
from coseek.core.settings import dump_settings
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.stages import Stage, stages_of
from coseek.training.rl.algorithm import spread_over_steps
from coseek.training.trainer.checkpoint import has_checkpoint

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
