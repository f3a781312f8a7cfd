"""The recipe of a base model's training and measurement. Does not import torch."""

from pydantic import Field

from coseek.core.settings import Settings
from coseek.models.laptop import LaptopSettings
from coseek.pipelines.generator_recipe import ReaderRecipe
from coseek.synthesis.settings import SynthesisSettings
from coseek.training.sft.base_tasks import BaseTaskSettings
from coseek.training.sft.settings import SftSettings
from coseek.training.trainer.settings import LearnerSettings, OptimizerSettings
from coseek.world.settings import WorldSettings


class CorpusSettings(Settings):
    """A user's own corpus."""

    folder: str
    """Its data set."""
    train: str = "train"
    """Split of the set's own questions that is learnt from, where there is one. Those with a gold path (2wiki, `coseek
    data synthesize`) are read as the made ones are; of those with gold passages alone, support is learnt."""
    held_out: str = "test"
    """Split of the set's own questions that is measured by, where there is one."""
    share: float = Field(default=0.75, gt=0.0, le=1.0)
    """Share of the examples with text that are of the corpus; the others are of drawn worlds."""
    words: int = Field(default=3000, ge=0)
    """Add tokens for the `words` most frequent words of the corpus that the tokenizer of `start` would split. Without
    `start`, the tokenizer learns from the corpus."""
    passage_tokens: int = Field(default=96, ge=8)
    """Tokens of a passage's text, at most."""
    made: SynthesisSettings = SynthesisSettings(
        count=9000, hop_mix=(0.8, 0.15, 0.04, 0.01), dev=0.02, test=0.04, unanswerable=0.0
    )
    """The questions that are made from its passages."""


class BaseRecipe(ReaderRecipe):
    """The training and measurement of a base model."""

    corpus: CorpusSettings | None = None
    """A user's corpus to read, besides drawn worlds."""
    tasks: BaseTaskSettings = BaseTaskSettings()
    """What it learns."""
    held_out: WorldSettings = WorldSettings(
        seed=1, lexicon="held-out", size="small", train=0, aliases=0.2, alias_use=0.15, paraphrases=2
    )
    """The world of the measurements; its relations and names are in no world of training."""
    laptop_world: WorldSettings = WorldSettings(seed=8, size="small", train=0, aliases=0.2, alias_use=0.15)
    """A laptop world: what is read there without training on its words."""
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
                warmup_updates=20, decay="linear", decay_from=0.4, floor=0.02,
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
    """The recipe for a user's corpus: from the shipped base, which copies and reads already."""
    recipe = BaseRecipe()
    # What it can do is kept: no warm-up of records and copies alone, and half of the rate.
    tasks = recipe.tasks.model_copy(update={"warm_up": 0.0})
    optimizer = recipe.sft.learner.optimizer.model_copy(update={"lr": 1e-3})
    changes = {"steps": 1500, "repeat_steps": 0, "varied_steps": 0, "evaluate_every": 500}
    learner = recipe.sft.learner.model_copy(update={"optimizer": optimizer})
    sft = recipe.sft.model_copy(update={**changes, "learner": learner})
    return recipe.model_copy(
        update={"start": "base", "corpus": CorpusSettings(folder=folder), "tasks": tasks, "sft": sft}
    )
