"""Stage in verl: the reinforcement learning of one stage of a recipe, from its questions to the policy it ends with."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from coseek.core.connections import is_url
from coseek.core.errors import SettingError
from coseek.core.progress import Progress
from coseek.data.question import Question
from coseek.graders.scoring import EpisodeScorer
from coseek.models.model_folder import model_path
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.stages import Stage
from coseek.pipelines.verl.launch import VerlTraining, take_weights
from coseek.training.rl.backends.verl import NAME
from coseek.training.trainer.workers import Workers


class Training(Protocol):
    """What a stage asks of the training that it is part of."""

    recipe: AgentRecipe
    folder: Path
    workers: Workers
    progress: Progress

    @property
    def data_folder(self) -> Path: ...

    def policy_folder(self, name: str) -> Path: ...

    def scoring(self, recipe: AgentRecipe) -> EpisodeScorer: ...

    def training_questions(self, stage: Stage, scoring: EpisodeScorer) -> list[Question]: ...

    def dev_questions(self, recipe: AgentRecipe) -> list[Question]: ...


def reinforced_in_verl(training: Training, stage: Stage, complete: Callable[[Path, str], None]) -> bool:
    """Write the files of the stage, run verl, and keep its last weights; `complete` adds a policy's tokenizer and
    cards. A training that verl has ended is not started again. Returns False for a stage of another backend."""
    if stage.recipe.rl.backend != NAME:
        return False
    if training.workers.world > 1:
        raise SettingError("verl starts its own processes; start coseek without torchrun")
    recipe, data = stage.recipe, training.recipe.data
    settings = recipe.rl.model_copy(update={"seed": stage.seed(recipe.rl.seed, "rl")})
    index = training.folder / "data.index" if data.index is None else data.index
    local = not is_url(str(index))
    run = VerlTraining(
        recipe.model_copy(update={"rl": settings}),
        stage.folder.resolve(),
        model_path(str(training.policy_folder(stage.begins))).resolve(),
        training.policy_folder("start").resolve(),
        str(Path(index).resolve()) if local else str(index),
        training.data_folder.resolve() if data.world is not None else None,
    )
    script = run.write(training.training_questions(stage, training.scoring(recipe)), training.dev_questions(recipe))
    training.progress.say(f"verl: its configuration, data and {script.name} are in {run.folder}")
    if run.weights() is None:
        run.start(script)
    weights = run.weights()
    if weights is None:
        raise SettingError(f"verl ended before step {settings.steps}; start {script}, and go on here with --resume")
    training.progress.say(f"verl: {run.faults} episodes had a fault, and are in no loss and no baseline")
    take_weights(weights, training.policy_folder(stage.ends), lambda part: complete(part, stage.ends))
    return True
