"""Recipe of a retriever: everything that decides how an encoder is trained and measured. Does not import torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.registry import find_yaml
from coseek.core.settings import Settings, apply_overrides, make_settings
from coseek.hardware.precision import TrainingPrecision
from coseek.retrieval.views import View
from coseek.training.trainer.settings import LoraSettings, OptimiserSettings
from coseek.world.settings import WorldSettings

RECIPES = Path(__file__).parent.parent.parent / "recipes" / "retriever"


class LaptopEncoderSettings(Settings):
    """The shape of an encoder that is made from nothing; the defaults make about 0.6 M parameters."""

    hidden: int = Field(default=128, ge=8)
    """Width of the network and of its vectors."""
    layers: int = Field(default=1, ge=1)
    """Attention layers."""
    heads: int = Field(default=4, ge=1)
    """Heads of an attention layer; `hidden` is divided among them."""
    feed_forward: int = Field(default=256, ge=8)
    """Inner width of the feed-forward part."""
    vocabulary: int = Field(default=3000, ge=300)
    """At most so many pieces of words are learnt from the texts, bytes and special tokens included."""
    max_tokens: int = Field(default=256, ge=8)
    """Longest text that it can read."""
    pooling: Literal["mean", "cls"] = "mean"
    """How the vectors of the tokens become one."""


class SyntheticSettings(Settings):
    """Labels without a trajectory: in throw-away laptop worlds, every step of a question's plan is a search, its gold
    passage the positive and what BM25 finds besides it the negatives."""

    worlds: int = Field(default=16, ge=1)
    """How many worlds; no fact of a measured world is in them."""
    world: WorldSettings = WorldSettings(size="compact", train=500, dev=0, test=0)
    """What a world is like; each has another seed."""
    held_out: WorldSettings = WorldSettings(seed=8, size="small", train=0, dev=400, test=0)
    """The world that is looked at, its split dev; the pool is its corpus."""
    kinds: dict[Literal["name+type", "name", "name+relation", "sub-question", "short name+relation"], float] = Field(
        default={"name+type": 1.0, "name": 1.0, "name+relation": 1.0, "sub-question": 2.0, "short name+relation": 1.0}
    )
    """Kinds of query, and how often each is drawn for a step of a plan."""
    candidates: int = Field(default=12, ge=2)
    """What BM25 finds at most, the positive left out."""


class RetrieverLoss(Settings):
    """What is lowered. `loss.py` has the formulas."""

    kind: Literal["contrastive", "kl"] = "contrastive"
    """`contrastive`: the positive against all others (000, eq. 5). `kl`: the retriever's distribution over a turn's
    candidates against the labels' `targets` (REPLUG)."""
    temperature: float = Field(default=0.01, gt=0.0)
    """Scores are divided by it."""
    negatives: int = Field(default=15, ge=0)
    """Negatives of a row at most; of more, so many are drawn anew every epoch (`contrastive`)."""
    in_batch: bool = True
    """Whether the passages of other rows are negatives, too, those of all workers included (`contrastive`)."""


class RetrieverUpdates(Settings):
    """How the encoder is run and stepped."""

    epochs: float = Field(default=2.0, gt=0.0)
    """Passes over the rows."""
    steps: int | None = Field(default=None, ge=1)
    """Updates; in place of `epochs` when given."""
    batch_size: int = Field(default=32, ge=2)
    """Rows in an update, those of all workers together."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens that go through the encoder at once: a matter of memory and speed, not of the result."""
    cached: bool = True
    """A batch of several micro-batches is encoded twice, and only one micro-batch's activations are kept at a time
    (GradCache, Gao et al. 2021): the same gradient, a third slower, and far less memory. False keeps them all."""
    precision: TrainingPrecision = "float32"
    """Arithmetic of the forward pass; weights and optimiser are float32 either way. `auto`: what is fastest here."""
    optimiser: OptimiserSettings = OptimiserSettings(lr=2e-5, decay="linear", decay_from=0.0)
    """AdamW and its schedule."""
    lora: LoraSettings | None = None
    """Train low-rank adapters, which are added to the weights at the end."""
    freeze_layers: int = Field(default=0, ge=0)
    """The token embeddings and so many layers above them stay as they are; 0 trains everything."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Share of activations that are dropped in training; as the encoder's own files say when not set."""
    start_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the weights it began with in those that are kept, for texts unlike the labels (WiSE-FT, Wortsman et
    al. 2022). What is looked at while training is the trained weights alone."""
    log_every: int = Field(default=10, ge=1)
    """Updates between lines of metrics."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Updates between checkpoints; a run goes on from the last one."""


class HeldOutSettings(Settings):
    """What is looked at while the encoder is trained: labelled turns of questions that it is not trained on."""

    share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the *questions* that are held out, all their turns with them; 0 looks at nothing."""
    seed: int | None = None
    """Which questions follows from it and from their words; the recipe's seed when not set. An encoder that begins as
    another one ended takes the seed of that one, or it is looked at with questions that it was trained on."""
    turns: int = Field(default=500, ge=1)
    """Turns that are looked at, at most."""
    every: int = Field(default=0, ge=0)
    """Updates between two looks; 0 looks before the first and after the last only."""
    corpus: str | None = None
    """`corpus.jsonl` that is searched; all passages of the labels when not set."""
    passages: int = Field(default=5000, ge=2)
    """Passages that are searched, at most: the positives and gold passages, and others drawn."""
    k: tuple[int, ...] = (1, 3, 5)
    """Depths at which recall is taken."""
    keep: Literal["last", "best"] = "last"
    """Which weights are the result: those at the end, or those of the look with the best `mrr`."""
    bm25: bool = True
    """Measure BM25 on the same turns for the table."""


class RetrieverRecipe(Settings):
    """How one encoder is trained and measured."""

    about: str = ""
    """One line for people."""
    seed: int = 0
    """Everything random in the run follows from it, but for the held-out world, which has a seed of its own."""
    labels: tuple[str, ...] = ()
    """Label folders, as `coseek label` writes them."""
    lessons: SyntheticSettings | None = None
    """Throw-away laptop worlds in place of labels."""
    encoder: str | None = "minilm"
    """Where it begins: a sentence-transformers folder, or an encoder that a package ships; none makes one."""
    laptop: LaptopEncoderSettings = LaptopEncoderSettings()
    """The shape of one that is made (`encoder: null`)."""
    view: View | None = None
    """The query view that it is trained with and then asked with; none for the query alone, and no promise."""
    query_prompt: str | None = None
    """Written before each query; as the encoder's card says when not set."""
    passage_prompt: str | None = None
    """Written before each passage; as the encoder's card says when not set."""
    query_tokens: int | None = Field(default=None, ge=1)
    """Queries are cut to so many tokens, or to what the encoder can read; as its card says when not set."""
    passage_tokens: int | None = Field(default=None, ge=1)
    """Passages are cut to so many tokens, or to what the encoder can read; as its card says when not set."""
    pooling: Literal["mean", "lasttoken", "cls"] | None = None
    """How the vectors of the tokens become one; as the encoder does it when not set."""
    loss: RetrieverLoss = RetrieverLoss()
    """What is lowered."""
    training: RetrieverUpdates = RetrieverUpdates()
    """How the encoder is run and stepped."""
    held_out: HeldOutSettings = HeldOutSettings()
    """What is looked at while it is trained."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; as many as there are cores when not set. Results are the same only for the same number."""
    track: tuple[str, ...] = ()
    """Experiment trackers that are sent every row of `metrics.jsonl`: tensorboard, wandb, trackio, mlflow, or the path
    of a Python file. They change no result, and may change when a run goes on."""

    @model_validator(mode="after")
    def _one_source(self) -> "RetrieverRecipe":
        if bool(self.labels) == (self.lessons is not None):
            raise SettingError(
                "a retriever learns either from labels (--labels FOLDER, made by `coseek label`) or from lessons"
            )
        if self.loss.kind == "kl" and self.lessons is not None:
            raise SettingError(
                "lessons have no targets; the loss `kl` needs labels of a method that gives some (replug)"
            )
        return self


def retriever_recipe_names() -> list[str]:
    """The recipes that are ours."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_retriever_recipe(name: str, overrides: Sequence[str] = (), labels: Sequence[str] = ()) -> RetrieverRecipe:
    """One of our recipes by name, or a file; then `a.b=c` overrides; then label folders in place of its own."""
    path = find_yaml("retriever recipe", RECIPES, name)
    tree = read_yaml(path, "recipe")
    if isinstance(inside := tree.get("recipe"), dict):  # what a run wrote down, with versions and commit beside it
        tree = inside
    if labels:
        tree = {**tree, "labels": [*labels], "lessons": None}
    return make_settings(
        RetrieverRecipe, apply_overrides(_filled(tree), overrides), "" if path.parent == RECIPES else path, overrides
    )


def _filled(tree: JsonObject) -> JsonObject:
    """A recipe that names groups with no line below them (`training:`) means their defaults."""
    groups = ("laptop", "loss", "training", "held_out")
    return {name: {} if value is None and name in groups else value for name, value in tree.items()}
