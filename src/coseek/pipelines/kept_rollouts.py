"""Kept rollouts: the writer of a stage's rollouts, and what their `run.yaml` says."""

from pathlib import Path

from coseek.core.files import JsonObject
from coseek.core.settings import dump_settings
from coseek.pipelines.stages import Stage
from coseek.training.rl.rollout_writer import RolloutWriter
from coseek.training.trainer.workers import Workers


def rollout_writer(stage: Stage, tokenizer: Path, workers: Workers) -> RolloutWriter:
    """The callback that keeps rollouts in `rollouts` of the stage's folder."""
    recipe = stage.recipe

    def settings_of(step: int) -> JsonObject:
        return {
            "agent": {
                "name": f"{stage.ends} before the updates of step {step}",  # no folder holds these weights
                "protocol": recipe.protocol,
                "prompt_template": recipe.prompt_template,
                "chat_template": recipe.chat_template,
                "temperature": recipe.rl.temperature,
                "tokenizer": str(tokenizer),
            },
            "step": step,
            "reward": dump_settings(recipe)["reward"],
            "limits": dump_settings(recipe.limits),
        }

    return RolloutWriter(stage.folder / "rollouts", recipe.rl.keep_rollouts, settings_of, workers)
