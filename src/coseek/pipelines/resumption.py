"""Resumption: what may change when the training of an agent goes on, and how a finished stage gets more steps.

    rl.monitor, table.wide_rag, track    move no weight: always
    rl.steps                             of the last stage that has begun, unless something is spread over the steps

A stage that gets more steps goes on from its last checkpoint. The policy that it had left behind is kept under another
name, and what was measured with it is measured anew.
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

FREE = {"rl": ("monitor",), "table": ("wide_rag",)}
"""What may always change: what counts as healthy, and what else is measured, moves no weight."""
STEPS = {**FREE, "rl": ("monitor", "steps")}
"""The same with what `MoreSteps` checks by itself."""


def bound(recipe: AgentRecipe) -> JsonObject:
    """A recipe without what may change, of its stages neither."""
    tree = dump_settings(recipe)
    del tree["track"]
    for part in (tree, *cast(dict[str, JsonObject], tree["stages"]).values()):
        for group, names in STEPS.items():
            if isinstance(settings := part.get(group), dict):
                part[group] = {name: value for name, value in settings.items() if name not in names}
                if not part[group]:  # a stage that sets nothing else is one that sets nothing
                    del part[group]
    return tree


@dataclass(frozen=True)
class MoreSteps:
    """Other numbers of steps than a folder was begun with."""

    recipe: AgentRecipe
    folder: Path
    follows: Callable[[], bool]
    """Whether the engine that searches gets better or worse as training goes on."""

    def take(self, began: AgentRecipe) -> None:
        """Check every stage, then put aside the policies of those that go on."""
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
                if kept.exists():  # of the same steps, when more were asked for, taken back and asked for again
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
            problem = f"the stage {begun.name} has begun with the policy that this one left behind"
        elif not has_checkpoint(new.folder / "checkpoints"):
            problem = f"{new.folder / 'checkpoints'} holds no checkpoint to go on from"
        if problem:
            raise SettingError(f"{what}: {problem}; {way_out}")


def steps_done(stage: Stage) -> int:
    """Steps of reinforcement learning that a stage has written down."""
    path = stage.folder / "metrics.jsonl"
    if stage.recipe.learn == "rejection" or not path.exists():
        return 0
    return max((int(str(row.get("step", 0))) for _, row in read_jsonl(path)), default=0)
