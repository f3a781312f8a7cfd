"""Recipes: the training and measurement of a laptop generator, a base model and a simulator. Does not import torch."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from coseek.core.errors import DataError
from coseek.core.settings import Settings
from coseek.hardware.placement import DevicePlacement, Placement
from coseek.hub.card import UNKNOWN, License
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.training.base_tasks import BaseTaskSettings
from coseek.lab.world.settings import WorldSettings
from coseek.models.laptop import LaptopSettings
from coseek.models.model_folder import missing, model_path, shipped_models
from coseek.rewards.reward import RewardSpec
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.sft.settings import Phase, SftSettings

HOP_MIX = (0.30, 0.35, 0.20, 0.15)


def _world(**changes: float | str) -> WorldSettings:
    common = {"aliases": 0.2, "alias_use": 0.15, "paraphrases": 2, "hop_mix": HOP_MIX}
    return WorldSettings.model_validate({**common, **changes})


class GeneratorTable(Settings):
    """The measurements."""

    dev_questions: int = Field(default=150, ge=1)
    """Questions of the gate."""
    questions: int = Field(default=800, ge=1)
    """Maximum number of questions of the final measurement."""
    passages: int = Field(default=5, ge=2)
    """Passages per question, gold ones included."""
    others: tuple[Annotated[int, Field(ge=1)], ...] = (1, 12)
    """Further values of `passages` for the final measurement; 1: the gold ones alone."""
    seed: int = 0
    """Seed of the drawn questions, of the passages' order, and of the bootstrap."""


class ReaderRecipe(Placement):
    """The training and measurement of a laptop model that reads passages. `precision` is that of answering."""

    seed: int = 0
    """Seed of everything except the held-out world."""
    license: License = UNKNOWN
    """Licence of the weights, for their model cards: apache-2.0, mit, other …; it may change when a run goes on."""
    held_out: WorldSettings = _world(seed=8, size="small", train=0)
    """The world of the gate (split dev) and of the final measurement (split test)."""
    start: str | None = None
    """The model to start from: a folder or the name of a shipped model; `null`: an untrained one of `laptop`."""
    laptop: LaptopSettings = LaptopSettings()
    """The shape of an untrained model."""
    sft: SftSettings = SftSettings()
    """The supervised training."""
    max_answer_tokens: int = Field(default=256, ge=1)
    """Maximum tokens of an answer, rationale included."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; all cores when not set."""
    table: GeneratorTable = GeneratorTable()
    """The measurements."""


class GeneratorRecipe(ReaderRecipe):
    """The training and measurement of a laptop generator."""

    start: str | None = "base"
    """The model to start from: a folder or the name of a shipped model; `null`: an untrained one of `laptop`."""
    words: int = Field(default=1500, ge=0)
    """Add tokens for the `words` most frequent words of the worlds that the tokenizer of `start` would split."""
    worlds: int = Field(default=40, ge=1)
    """Number of throw-away worlds of the examples, without facts of the held-out world."""
    world: WorldSettings = _world(size="compact", train=400, dev=0, test=0, comparison=0.2, constraint=0.15)
    """Settings of a throw-away world; each has another seed. It has more comparisons and constraints than the held-out
    world, since they are learnt last."""
    passages: tuple[int, int] = (1, 12)
    """Minimum and maximum passages of an example: gold ones, and others unless it is one passage. The number that
    agents serve must lie between: trained on 2 to 6, EM was .055 with nine passages and .30 with three."""
    known: str | None = None
    """Folder of a laptop world with `known`. A third of the examples are its known facts, without passages or with
    passages that do not state them."""
    sft: SftSettings = SftSettings(
        steps=1500,
        repeat_steps=0,
        environment_weight=0.0,
        curriculum=(
            Phase(until=0.3, hops={0: 0.8, 1: 0.2}),
            Phase(until=1.0, hops={0: 0.1, 1: 0.35, 2: 0.27, 3: 0.16, 4: 0.12}),
        ),
        # As the warm start of the quickstart, which teaches the base the words of laptop worlds too.
        learner=LearnerSettings(
            optimizer=OptimizerSettings(
                algorithm="muon", lr=4e-3, muon_lr_factor=2.0, betas=(0.9, 0.98), warmup_updates=10,
                lr_scheduler_type="linear", decay_from=0.1,
            ),
            precision="auto",
            micro_batch_tokens=2000,
        ),
        gate=0.8,
        gate_metric="em",
        rounds=2,
        later_steps=800,
        evaluate_every=300,
    )  # fmt: skip
    """The supervised training; the gate is strict EM on held-out questions with gold passages among others."""


class CorpusSettings(Settings):
    """A user's own corpus."""

    folder: str
    """Its data set."""
    train: str = "train"
    """Split of the set's own questions to train on, if it exists. Those with a gold path (2wiki, `coseek data
    synthesize`) are used like the made ones; those with gold passages only train the task `support`."""
    held_out: str = "test"
    """Split of the set's own questions to measure, if it exists."""
    share: float = Field(default=0.75, gt=0.0, le=1.0)
    """Share of the examples with text from the corpus; the others are from drawn worlds."""
    words: int = Field(default=3000, ge=0)
    """Add tokens for the `words` most frequent words of the corpus that the tokenizer of `start` would split. Without
    `start`, the tokenizer learns from the corpus."""
    passage_tokens: int = Field(default=96, ge=8)
    """Maximum tokens of a passage's text."""
    made: SynthesisSettings = SynthesisSettings(count=9000, hop_mix=(0.8, 0.2), dev=0.02, test=0.04, unanswerable=0.0)
    """The questions to make from its passages."""


class BaseRecipe(ReaderRecipe):
    """The training and measurement of a base model."""

    corpus: CorpusSettings | None = None
    """A user's corpus to read, besides drawn worlds."""
    tasks: BaseTaskSettings = BaseTaskSettings()
    """The training tasks."""
    held_out: WorldSettings = WorldSettings(
        seed=1, lexicon="held-out", size="small", train=0, aliases=0.2, alias_use=0.15, paraphrases=2
    )
    """The world of the measurements; its relations and names are in no training world."""
    laptop_world: WorldSettings = WorldSettings(seed=8, size="small", train=0, aliases=0.2, alias_use=0.15)
    """A laptop world, to measure reading without training on its words."""
    laptop: LaptopSettings = LaptopSettings(
        hidden=128,
        layers=("conv", "full_attention") * 4,
        heads=4,
        kv_heads=4,
        kernel=6,
        embedding_std=0.09,
        feed_forward=320,
        vocabulary=4096,
        single_digits=True,
    )
    """The model's shape: 2 M parameters."""
    sft: SftSettings = SftSettings(
        steps=12000,
        tokens_per_step=4000,
        repeat_steps=120,
        varied_steps=240,
        environment_weight=0.0,
        curriculum=(),
        learner=LearnerSettings(
            optimizer=OptimizerSettings(
                algorithm="muon", lr=2e-3, muon_lr_factor=3.0, betas=(0.9, 0.98), weight_decay=0.02,
                warmup_updates=20, lr_scheduler_type="linear", decay_from=0.4, min_lr_ratio=0.02,
            ),
            precision="auto",
            micro_batch_tokens=2000,
        ),
        evaluate_every=1000,
        checkpoint_every=100,
        log_every=20,
    )  # fmt: skip
    """The supervised training."""
    tokenizer_worlds: int = Field(default=150, ge=1)
    """Worlds whose text the tokenizer learns from."""


def corpus_recipe(folder: str) -> BaseRecipe:
    """The recipe for a user's corpus: from the shipped base model, which can already copy and read."""
    recipe = BaseRecipe()
    # To keep its abilities: no warm-up of records and copies alone, and half of the learning rate.
    tasks = recipe.tasks.model_copy(update={"warm_up": 0.0})
    optimizer = recipe.sft.learner.optimizer.model_copy(update={"lr": 1e-3})
    changes = {"steps": 1500, "repeat_steps": 0, "varied_steps": 0, "evaluate_every": 500}
    learner = recipe.sft.learner.model_copy(update={"optimizer": optimizer})
    sft = recipe.sft.model_copy(update={**changes, "learner": learner})
    return recipe.model_copy(
        update={"start": "base", "corpus": CorpusSettings(folder=folder), "tasks": tasks, "sft": sft}
    )


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
