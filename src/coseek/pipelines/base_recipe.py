"""The recipe of a base model's training and measurement. Does not import torch."""

from pydantic import Field

from coseek.models.laptop import LaptopSettings
from coseek.pipelines.generator_recipe import ReaderRecipe
from coseek.training.sft.base_tasks import BaseTaskSettings
from coseek.training.sft.settings import SftSettings
from coseek.training.trainer.settings import LearnerSettings, OptimiserSettings
from coseek.world.settings import WorldSettings


class BaseRecipe(ReaderRecipe):
    """The training and measurement of a base model."""

    start: str | None = None
    """A base model to go on from, a folder or a shipped one by name; default: an untrained model of `laptop`."""
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
            optimiser=OptimiserSettings(
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
