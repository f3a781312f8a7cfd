"""verl: reinforcement learning of a stage by verl, whose workers play coseek's episodes (`coseek.adapters.verl`).

Implements `EpisodeLoop`. Each module is imported when it is needed: a recipe is checked before torch is loaded.
"""

from collections.abc import Callable
from pathlib import Path

from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.stages import LoopTask


def check(recipe: AgentRecipe) -> None:
    """Raise `SettingError` for what a stage's recipe asks and verl cannot do."""
    from coseek.pipelines.verl.config import check_verl

    check_verl(recipe)


def train(task: LoopTask, say: Callable[[str], None]) -> Path:
    """Write the task's files and run verl; returns the folder of its last weights."""
    from coseek.pipelines.verl.launch import train_in_verl

    return train_in_verl(task, say)
