"""Recipe: all settings of the training and evaluation of a retriever's encoder. Does not import torch."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, cast

from pydantic import Field, model_validator

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.plugins import find_plugin, find_yaml, yaml_names
from coseek.core.settings import MayChange, Settings, apply_overrides, make_settings
from coseek.data.maker import SynthesisGroup
from coseek.data.passage import Passage
from coseek.hardware.placement import DevicePlacement, TrainingPrecision
from coseek.hub.card import UNKNOWN, License
from coseek.labels.label_set import LabelSet
from coseek.retrieval.views import View, load_views
from coseek.training.learner.settings import LoraSettings, OptimizerSettings

LABELS = "coseek.lab.parts"
"""The package of label sources, which are plug-ins."""


class SyntheticLabels(Protocol):
    """Interface of the plug-in `synthetic`: labels from temporary laptop worlds."""

    SETTINGS: "type[SyntheticGroup]"

    def texts(self, settings: "SyntheticGroup", seed: int) -> Iterator[str]:
        """Return the texts that a new tokenizer is trained on."""

    def training_labels(self, settings: "SyntheticGroup", seed: int) -> Iterator[list[LabelSet]]:
        """Yield the label sets of each world."""

    def held_out_labels(
        self, settings: "SyntheticGroup", seed: int
    ) -> tuple[Mapping[str, list[LabelSet]], Sequence[Passage]]:
        """Return label sets of a world that is not trained on, by kind of query, and its corpus."""


def synthetic_labels() -> SyntheticLabels:
    """Return the plug-in `synthetic`."""
    return cast(SyntheticLabels, find_plugin("label source", LABELS, "synthetic"))


if TYPE_CHECKING:

    class SyntheticGroup(Settings):
        """The settings that are read here."""

        worlds: int

else:
    SyntheticGroup = synthetic_labels().SETTINGS

RECIPES = Path(__file__).parent.parent.parent / "recipes" / "retriever"
UNREAD: Mapping[str, Sequence[str]] = {
    "dense": ["token_dimension"],
    "late-interaction": ["pooling"],
    "sparse": ["token_dimension", "pooling"],
    "reranker": ["token_dimension", "pooling", "query_prompt", "passage_prompt"],
}
"""Kind → the settings that it does not read, besides `loss.flops`."""


class LaptopEncoderSettings(Settings):
    """Shape of an encoder with random initial weights; the defaults make about 0.6 M parameters."""

    hidden: int = Field(default=128, ge=8)
    """Hidden size, and dimension of the vectors without `dimension`."""
    dimension: int | None = Field(default=None, ge=8)
    """Dimension of the vectors: a dense layer with ReLU widens the vector of every token before they are pooled."""
    layers: int = Field(default=1, ge=1)
    """Attention layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; they must divide `hidden`."""
    feed_forward: int = Field(default=256, ge=8)
    """Inner size of the feed-forward part."""
    vocabulary: int = Field(default=3000, ge=300)
    """Maximum vocabulary size of the tokenizer, bytes and special tokens included."""
    max_tokens: int = Field(default=256, ge=8)
    """Maximum length of a text, in tokens."""
    pooling: Literal["mean", "cls"] = "mean"
    """Pooling of the token vectors."""


class DataLabelSettings(Settings):
    """Labels from a data set alone: every step of a question's gold path is a search, and so is a sentence or heading
    of a passage, which is then taken out of the passage. Negatives are other passages that BM25 finds."""

    folder: str
    """The data set, as `coseek data import documents` or `coseek data synthesize` writes it. Where it has no split to
    train on, questions are made from its passages."""
    train: str = "train"
    """Split of the labels."""
    dev: str = "dev"
    """Split of the held-out turns; without it, some of the training questions."""
    test: str = "test"
    """Split of the last table."""
    questions: tuple[str, ...] = ()
    """Further questions with gold passages for the last table: files, or data-set folders with the split `test`."""
    sentences: int = Field(default=4000, ge=0)
    """Passages, at most, that give a query of their own words; 0: labels of questions alone."""
    candidates: int = Field(default=12, ge=2)
    """Maximum number of passages from BM25, without the positive."""
    synthesis: SynthesisGroup = SynthesisGroup()
    """How questions are made where there are none."""


class RetrieverLoss(Settings):
    """The training loss. `loss.py` gives the formulas."""

    kind: Literal["contrastive", "kl"] = "contrastive"
    """`contrastive`: the positive against all other passages (Agentic-R, eq. 5). `kl`: KL divergence of the retriever's
    distribution over a turn's candidates from the labels' `targets` (REPLUG)."""
    temperature: float = Field(default=0.01, gt=0.0)
    """Divisor of the scores."""
    negatives: int = Field(default=15, ge=0)
    """Maximum negatives per row; from more, a new sample is drawn every epoch (`contrastive`)."""
    in_batch: bool = True
    """Use the passages of other rows, those of all workers included, as negatives too (`contrastive`; not for a
    reranker, which would have to read each of them with the query)."""
    mask_false_negatives: bool = True
    """Leave out passages that may be right for a row: see `batch.py` (`contrastive`). Agentic-R leaves out none."""
    flops: tuple[float, float] = (0.01, 0.01)
    """Weights of the FLOPS term of queries and of passages, which keeps the words of a text few (`kind: sparse`)."""
    in_batch_rows: int | None = Field(default=None, ge=1)
    """Rows of an update that are negatives of each other; all of them if not set. With half of `batch_size`, an update
    has the gradient of two accumulated batches."""


class RetrieverUpdates(Settings):
    """Batches, precision and optimizer of the training."""

    epochs: float = Field(default=2.0, gt=0.0)
    """Passes over the rows."""
    steps: int | None = Field(default=None, ge=1)
    """Updates; replaces `epochs` if set."""
    batch_size: int = Field(default=32, ge=2)
    """Rows per update, over all workers."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Maximum tokens per forward pass. It changes memory and speed, not the result."""
    cached: bool = True
    """Encode a batch of several micro-batches twice and keep the activations of one micro-batch at a time (GradCache,
    Gao et al. 2021): the same gradient, a third slower, and far less memory. False keeps all activations."""
    gradient_checkpointing: bool = False
    """Keep the inputs of layers instead of all activations, and compute these again in the backward pass: long texts
    need far less memory, for a third more time."""
    precision: TrainingPrecision = "float32"
    """Precision of the forward pass; weights and optimizer stay float32. `auto`: the fastest on this machine."""
    optimizer: OptimizerSettings = OptimizerSettings(lr=2e-5, lr_scheduler_type="linear", decay_from=0.0)
    """AdamW and its schedule; `muon` is refused."""
    lora: LoraSettings | None = None
    """Train low-rank adapters, which are merged into the weights at the end."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout probability in training; that of the encoder's own files if not set."""
    start_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the initial weights in the saved weights, for texts unlike the labels (WiSE-FT, Wortsman et al. 2022).
    Evaluations during training use the trained weights alone."""
    log_every: int = Field(default=10, ge=1)
    """Updates between rows of metrics."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Updates between checkpoints; a training resumes from the last one."""


class HeldOutSettings(Settings):
    """Evaluation during training, on labelled turns of questions that are not trained on."""

    share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of *questions* that are held out with all their turns; 0 evaluates nothing."""
    seed: int | None = None
    """Decides, with a question's text, whether it is held out; the recipe's seed if not set. To continue training from
    another trained encoder, set its seed, or questions that it was trained on are held out."""
    turns: int = Field(default=500, ge=1)
    """Maximum number of turns to evaluate."""
    every: int = Field(default=0, ge=0)
    """Updates between evaluations; 0 evaluates only before the first and after the last update."""
    corpus: str | None = None
    """Data set or corpus file to search, for labels from folders; all passages of the labels if not set."""
    passages: int = Field(default=5000, ge=2)
    """Maximum number of passages to search: the positives and gold passages, and a sample of others."""
    k: tuple[int, ...] = (1, 3, 5)
    """Values of k for recall@k."""
    keep: Literal["last", "best"] = "last"
    """Which weights are saved: those at the end, or those of the evaluation with the best `mrr` (needs `every`)."""


class RetrieverRecipe(DevicePlacement):
    """Settings of the training and evaluation of one encoder or reranker, both on one device."""

    about: str = ""
    """One line of description."""
    seed: int = 0
    """Seed of all randomness in the training, except for the held-out world, which has its own seed."""
    license: License = UNKNOWN
    """Licence of the weights, for their model cards: apache-2.0, mit, other …; it may change when a run goes on."""
    labels: tuple[str, ...] = ()
    """Label folders, as `coseek label` writes them."""
    synthetic: SyntheticGroup | None = None
    """Synthetic labels from laptop worlds, in place of label folders."""
    data: DataLabelSettings | None = None
    """Labels from a data set's own questions and passages, in place of label folders."""
    encoder: str | None = "minilm"
    """Initial encoder: a sentence-transformers folder, or a shipped one (`base`, `minilm`); none creates one."""
    trust_remote_code: bool = False
    """Run the Python code in that folder, for encoders that are no architecture of transformers."""
    laptop: LaptopEncoderSettings = LaptopEncoderSettings()
    """Shape of a created encoder (`encoder: null`)."""
    kind: Literal["dense", "late-interaction", "sparse", "reranker"] = "dense"
    """The retriever that is trained. `late-interaction` compares the vectors of tokens by MaxSim; the loss divides it
    by the query's tokens, so that a temperature fits both kinds. It starts from the language model of an encoder of one
    vector per text, or from an encoder of token vectors. `sparse` gives a text a weight per word of the vocabulary
    (SPLADE); its loss adds `loss.flops` and fits a `temperature` of 1. `reranker`: a cross-encoder, which scores a
    query and a passage that it reads together. It starts from the language model of an encoder, with an untrained layer
    for the score, or from a cross-encoder. Its loss is listwise, over a row's own candidates, and fits a `temperature`
    of 1."""
    token_dimension: int = Field(default=128, ge=1)
    """Dimension of the token vectors where late interaction starts from an encoder of one vector per text: a linear
    layer with random orthogonal weights is put on its language model."""
    view: View | None = None
    """Query view in training and in searches. None: the query alone, and the encoder records no view."""
    query_prompt: str | None = None
    """Prefix of each query; that of the encoder's card if not set."""
    passage_prompt: str | None = None
    """Prefix of each passage; that of the encoder's card if not set."""
    query_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a query, at most what the encoder can read; that of its card if not set."""
    passage_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a passage, at most what the encoder can read; that of its card if not set."""
    pooling: Literal["mean", "lasttoken", "cls"] | None = None
    """Pooling of the token vectors; that of the encoder if not set."""
    loss: RetrieverLoss = RetrieverLoss()
    """The training loss."""
    training: RetrieverUpdates = RetrieverUpdates()
    """Batches, precision and optimizer."""
    held_out: HeldOutSettings = HeldOutSettings()
    """Evaluation on held-out turns."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; the number of cores if not set. Results are equal only for equal numbers of threads."""
    track: Annotated[tuple[str, ...], MayChange()] = ()
    """Experiment trackers that are sent every row of `metrics.jsonl`: tensorboard, wandb, trackio, mlflow, or the path
    of a Python file. They change no result, and may change when a training is resumed."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "RetrieverRecipe":
        every, saved = self.held_out.every, self.training.checkpoint_every
        own_negatives_only = self.kind == "reranker" or not self.loss.in_batch
        unread = [name for name in UNREAD[self.kind] if getattr(self, name) != type(self).model_fields[name].default]
        if self.kind != "sparse" and self.loss.flops != RetrieverLoss().flops:
            unread.append("loss.flops")
        sources = bool(self.labels) + (self.synthetic is not None) + (self.data is not None)
        problem = None
        if self.training.optimizer.algorithm == "muon":
            problem = "training.optimizer.algorithm=muon: encoders are trained by AdamW alone; take adamw and its rate"
        elif self.held_out.keep == "best" and not every:
            problem = (
                "held_out.keep=best chooses among evaluations, and held_out.every=0 makes none before the last update; "
                "set held_out.every to the updates between them"
            )
        elif self.held_out.keep == "best" and saved < every and every % saved:
            problem = (
                f"held_out.keep=best needs a checkpoint at every evaluation, and training.checkpoint_every={saved} "
                f"does not divide held_out.every={every}; change one of them"
            )
        elif self.loss.kind == "contrastive" and own_negatives_only and self.loss.negatives == 0:
            problem = "loss.negatives=0 leaves no passage to tell the positive from; set it to 1 or more"
        elif unread:
            problem = f"{unread[0]} does nothing with kind={self.kind}; leave it out"
        elif sources != 1:
            problem = (
                "a retriever is trained on labels (--labels FOLDER, made by `coseek label`), on synthetic ones, or on "
                "a data set (recipe `documents`, data.folder=DIR); give one"
            )
        elif self.loss.kind == "kl" and not self.labels:
            problem = "these labels have no targets, which the loss `kl` needs; make labels with the method replug"
        elif self.kind != "dense" and self.data is not None:
            problem = f"kind={self.kind} is trained on label folders or synthetic labels; leave `data` out"
        elif self.held_out.corpus is not None and not self.labels:
            problem = (
                f"held_out.corpus={self.held_out.corpus} is searched for turns of label folders, and these labels have "
                "a corpus of their own; leave it out"
            )
        if problem is not None:
            raise SettingError(problem)
        return self


def retriever_recipe_names() -> list[str]:
    """Return the names of the recipes of this package."""
    return yaml_names(RECIPES)


def load_retriever_recipe(name: str, overrides: Sequence[str] = (), labels: Sequence[str] = ()) -> RetrieverRecipe:
    """Load a recipe by name or from a file; without a name, one of defaults. `labels` replace its label folders, then
    `a.b=c` overrides apply."""
    path = find_yaml("retriever recipe", RECIPES, name) if name else RECIPES / "defaults"
    tree = read_yaml(path, "recipe") if name else {}
    if isinstance(recorded := tree.get("recipe"), dict):  # a run's record, which also holds versions and commit
        tree = recorded
    if labels:
        tree = {**tree, "labels": [*labels], "synthetic": None, "data": None}
    values = load_views(apply_overrides(_fill_groups(tree), overrides, RetrieverRecipe))
    return make_settings(RetrieverRecipe, values, "" if path.parent == RECIPES else path, overrides)


def _fill_groups(tree: JsonObject) -> JsonObject:
    """Replace groups that are empty in the file (`training:`) by their defaults."""
    groups = ("laptop", "loss", "training", "held_out")
    return {name: {} if value is None and name in groups else value for name, value in tree.items()}
