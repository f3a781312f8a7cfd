"""The recipe of tuning a model to play a search engine. Does not import torch."""

from pathlib import Path

from pydantic import Field

from coseek.core.errors import DataError
from coseek.hardware.placement import DevicePlacement
from coseek.hub.card import UNKNOWN, License
from coseek.models.model_folder import missing, model_path, shipped_models
from coseek.rewards.reward import RewardSpec
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.sft.settings import SftSettings


class SimulatorRecipe(DevicePlacement):
    """The tuning of a simulator (ZeroSearch): documents of right trajectories are useful, those of wrong ones noisy."""

    model: str
    """The shipped model or the model folder to start from."""
    runs: tuple[str, ...] = Field(min_length=1)
    """Run folders of any agent with a real search engine."""
    useful: RewardSpec = Field(default={"exact_match": 1.0})
    """The reward that separates right trajectories from wrong ones, of terms without a grader."""
    at_least: float = 1.0
    """Minimum reward of a right trajectory. Those that ended with a fault are skipped."""
    prompt: str = "simulated"
    """The prompt of the retriever `simulated` in which the model will be used: a name, or a YAML file."""
    hint: bool = True
    """Put the question and its answer into the prompt, as `questions` of the retriever does."""
    document_words: int = Field(default=100, ge=1)
    """Maximum words of a document to learn."""
    seed: int = 0
    """Seed of the order."""
    license: License = UNKNOWN
    """Licence of the weights, for their model cards: apache-2.0, mit, other …; it may change when a run goes on."""
    sft: SftSettings = SftSettings(
        steps=200,
        tokens_per_step=16384,
        repeat_steps=0,
        environment_weight=0.0,
        learner=LearnerSettings(optimizer=OptimizerSettings(lr=1e-5), precision="auto"),
    )
    """The supervised training."""


def check_simulator(recipe: SimulatorRecipe) -> None:
    """Raise `DataError` if the model folder or a run does not exist."""
    if not model_path(recipe.model).is_dir():
        raise DataError(missing("model folder", recipe.model, known=shipped_models()))
    for folder in recipe.runs:
        if not (Path(folder) / "run.yaml").is_file():
            raise DataError(f"{folder} is not a run; name folders of `coseek run` in runs")
