"""The recipe of co-training an agent and a retriever (paper 000, algorithm 1), and its checks, which run before
torch is imported and anything is written.

Round i trains agent i over retriever i-1, labels the agent's runs over that retriever with its candidates, and trains
retriever i on the labels. Agent 0 is the agent after its warm start; retriever 0 is an existing or a new encoder. The
rounds set data, index, initial weights and labels of both.
"""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from coseek.core.connections import is_url
from coseek.core.errors import DataError, ErrorList, SettingError
from coseek.core.files import Json, JsonObject, read_yaml
from coseek.core.plugins import find_yaml, yaml_names
from coseek.core.settings import MayChange, Settings, apply_overrides, dump_settings, make_settings, merge_settings
from coseek.graders.judge import is_world
from coseek.labels.maker import MakerRequirements, maker_module
from coseek.labels.resources import GOLD, ORACLE
from coseek.measure.score import answers_itself, check_metrics
from coseek.models.model_folder import missing, model_path, shipped_models
from coseek.pipelines.agent_check import check_encoder, check_recipe
from coseek.pipelines.agent_recipe import AgentRecipe, chosen_preset, recipe_tree
from coseek.retrieval.vectors.encoder import check_retriever_of, encoder_folder, is_shipped
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe, retriever_recipe_names
from coseek.training.tracker import find_tracker

RECIPES = Path(__file__).parent.parent / "recipes" / "together"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
GIVEN = "(the round's)"
"""Placeholder in the retriever's recipe for the labels and the initial encoder of each round."""

Plain: TypeAlias = bool | int | float | str


class StartSettings(Settings):
    """Retriever 0: exactly one of `encoder` and `recipe`."""

    encoder: str | None = None
    """A sentence-transformers folder, or a shipped encoder (`base`, `minilm`)."""
    recipe: RetrieverRecipe | None = None
    """The recipe of a new encoder; in a file also the name of a retriever recipe."""
    index: dict[str, Plain] = Field(default={})
    """Settings of its index that its card lacks: `view`, `query_prompt`, `passage_prompt` … Trained retrievers have a
    full card."""
    url: str | None = None
    """A server that is retriever 0, for which no index of `encoder` is built. Retriever 1 is initialised with
    `encoder`."""

    @model_validator(mode="after")
    def _one_source(self) -> "StartSettings":
        if self.url is not None and (self.encoder is None or self.index):
            raise SettingError(
                "start.url names the server that is retriever 0, and retriever 1 needs weights to begin with; give "
                "start.encoder beside it, and leave start.recipe and start.index out"
            )
        if (self.encoder is None) == (self.recipe is None):
            problem = "give either start.encoder (a folder, or base) or start.recipe (a retriever recipe), not both"
            raise SettingError(f"{problem}; `start=!replace {{encoder: …}}` replaces what the recipe says")
        return self


class IndexSettings(Settings):
    """The index of the corpus for every encoder."""

    retriever: Literal["dense", "hnsw", "ivf-pq", "late-interaction", "sparse"] = "dense"
    """A retriever that searches vectors."""
    settings: dict[str, Plain | list[str]] = Field(default={})
    """Its settings, such as `search: int8` or `devices: auto`, on which the first worker encodes the corpus."""


class LabellingSettings(Settings):
    """The labels of a round's runs."""

    method: str = "agentic-r"
    """One of the methods of `coseek label`."""
    settings: dict[str, object] = Field(default={})
    """The method's own settings."""
    scorer: str | None = None
    """Scorer of passages, for methods that need one: `oracle` (the laptop world's), `gold`, or a model. Every worker
    loads a model folder; a server is shared by all."""
    serve: Annotated[str | None, MayChange()] = None
    """A command that serves the scorer at the address that `scorer` names, on this machine, such as `vllm serve MODEL
    --port 8000`: started before a round's labels and stopped after them. May change on resume."""
    likelihood: str | None = None
    """Model of answer likelihoods, for methods that need one."""
    questions: int = Field(default=300, ge=1)
    """Training questions of a round, at most; every round draws its own."""
    samples: int = Field(default=1, ge=1)
    """Runs of each question."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of these runs, also for methods that roll out."""
    branch_temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature of continuations from a candidate passage."""

    @model_validator(mode="after")
    def _runs_differ(self) -> "LabellingSettings":
        if self.samples > 1 and self.temperature == 0:
            problem = f"labels.samples={self.samples} at labels.temperature=0 would be one run {self.samples} times"
            raise SettingError(f"{problem}; raise labels.temperature")
        shlex.split(self.serve or "")  # an open quote is a ValueError
        is_local = is_url(self.scorer) and urlsplit(self.scorer).hostname in LOOPBACK
        if self.serve is not None and not is_local:
            raise SettingError(
                f"labels.serve starts a server on this machine, and labels.scorer is {self.scorer}; set labels.scorer "
                "to the address that it will have, such as http://127.0.0.1:8000"
            )
        return self


class StopSettings(Settings):
    """Early stopping after a round that did not help."""

    metric: str | None = None
    """The metric on the dev split that every round must raise; by default the headline metric of the agent's recipe."""
    min_improvement: float = 0.0
    """Smallest increase of the metric for another round; 0: it must not fall."""
    questions: int = Field(default=200, ge=1)
    """Questions of the dev split, at most."""

    @field_validator("metric")
    @classmethod
    def _check_metric_name(cls, name: str | None) -> str | None:
        check_metrics(() if name is None else (name,))
        return name


class PairsSettings(Settings):
    """The table: every agent over every retriever, greedy, on the test split."""

    questions: int | None = Field(default=200, ge=1)
    """Questions, at most. null: all."""
    per_set: int | None = Field(default=None, ge=1)
    """Questions of each data set, at most. null: all."""
    seed: int = 0
    """Seed of the runs and of the bootstrap."""
    beside: bool = True
    """Add a column for the retriever of the agent's recipe (mostly BM25), which no round trains."""


class TogetherRecipe(Settings):
    """The co-training of an agent and a retriever in rounds, and its measurement."""

    about: Annotated[str, MayChange()] = ""
    """A one-line description."""
    seed: int = 0
    """Seed of every round's agent and retriever; the worlds and the warm start keep their own."""
    rounds: Annotated[int, MayChange()] = Field(default=2, ge=1)
    """Rounds, at most (000: 2); may change on resume."""
    agent: AgentRecipe
    """The agent's recipe; in a file also its name, or settings that extend one. `warm_start` makes agent 0; the rest is
    done in every round."""
    agent_begins: Literal["previous", "start"] = "previous"
    """Initial weights of an agent: those of the round before, or those of agent 0."""
    start: StartSettings
    """Retriever 0; in a file also the name of a retriever recipe, or of an encoder."""
    index: IndexSettings = IndexSettings()
    """The index of the corpus for every encoder."""
    labels: LabellingSettings = LabellingSettings()
    """The labels of a round's runs."""
    retriever: RetrieverRecipe
    """The retriever's recipe, without labels and encoder, which the rounds set."""
    retriever_begins: Literal["previous", "start"] = "previous"
    """Initial encoder of a retriever: that of the round before, or retriever 0."""
    stop: StopSettings | None = StopSettings()
    """Early stopping; null: off."""
    pairs: PairsSettings = PairsSettings()
    """The table."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of everything; all cores when not set. Results depend on the number."""

    @field_validator("retriever", mode="before")
    @classmethod
    def _fill_given(cls, tree: object) -> object:
        if not isinstance(tree, dict):
            return tree
        fixed: dict[str, object] = {"labels": [GIVEN], "encoder": GIVEN, "synthetic": None}
        for name, value in fixed.items():
            value_given = tree.get(name, value)
            if (list(value_given) if isinstance(value_given, tuple) else value_given) != value:
                raise SettingError(f"every round gives its retriever labels and encoder; leave retriever.{name} out")
        return {**tree, **fixed}

    @model_validator(mode="after")
    def _every_round_trains(self) -> "TogetherRecipe":
        if self.agent.tools or self.agent.data.view:
            raise ValueError("co-training does not support agent.tools and agent.data.view; write them to YAML files")
        if self.agent.learn == "demonstrations" and not self.agent.stages:
            raise SettingError("an agent with learn: demonstrations learns nothing in a round; take agent.learn=rl")
        kinds = {self.index.retriever, self.retriever.kind}
        special_kinds = sorted(kinds & {"late-interaction", "sparse"})
        if special_kinds and len(kinds) > 1:
            raise SettingError(f"index.retriever and retriever.kind must both be {special_kinds[0]}, or neither")
        return self


def together_recipe_names() -> list[str]:
    """The names of coseek's recipes."""
    return yaml_names(RECIPES)


def together_recipe_path(name: str) -> Path:
    """The file of a recipe: coseek's by name, or a path."""
    return find_yaml("co-training recipe", RECIPES, name)


def load_together_recipe(name: str, overrides: Sequence[str] = ()) -> TogetherRecipe:
    """Load a recipe by name or path, with `a.b=c` overrides (values are YAML); `data.…` is the agent's."""
    file = together_recipe_path(name)
    overrides = [f"agent.{text}" if text.startswith("data.") else text for text in overrides]
    tree = read_yaml(file, "co-training recipe")
    if isinstance(recorded := tree.get("recipe"), dict):  # a run's record
        tree = recorded
    typed = apply_overrides({}, [text for text in overrides if "." not in text.partition("=")[0]])
    inner = [text for text in overrides if "." in text.partition("=")[0]]
    # A preset is merged below the agent's other settings, so it is needed before they are read.
    preset = chosen_preset([text.removeprefix("agent.") for text in inner if text.startswith("agent.")])
    base, replacements = _resolve(tree, file, preset), _resolve(typed, Path("the command line"), preset)
    for name, value in typed.items():  # another recipe replaces the one below
        if isinstance(value, str) or (isinstance(value, dict) and "extends" in value):
            base.pop(name, None)
    merged = apply_overrides(merge_settings(TogetherRecipe, base, replacements), inner, TogetherRecipe)
    return make_settings(TogetherRecipe, merged, "" if file.parent == RECIPES else file, overrides)


def _resolve(tree: JsonObject, file: Path, preset: JsonObject) -> JsonObject:
    """Replace the names of recipes by their settings; paths are relative to the file. `preset` is the agent's."""
    tree = {**tree}
    if tree.get("agent") is not None:
        tree["agent"] = recipe_tree(tree["agent"], file, preset)
    if tree.get("start") is not None:
        tree["start"] = _parse_start(tree["start"])
    if isinstance(name := tree.get("retriever"), str):
        tree["retriever"] = {**dump_settings(load_retriever_recipe(name, labels=[GIVEN])), "encoder": GIVEN}
    return tree


def _parse_start(value: Json) -> Json:
    """Replace a name, folder or YAML file by `{recipe: …}` or `{encoder: …}`."""
    if is_url(value):
        return {"url": value}
    if isinstance(value, str):
        is_recipe = (value in retriever_recipe_names() and not is_shipped(value)) or value.endswith((".yaml", ".yml"))
        value = {"recipe" if is_recipe else "encoder": value}
    if isinstance(value, dict) and isinstance(name := value.get("recipe"), str):
        return {**value, "recipe": dump_settings(load_retriever_recipe(name))}
    return value


def check_together(recipe: TogetherRecipe) -> None:
    """Refuse missing files and settings that contradict each other; all mistakes in one error."""
    mistakes = ErrorList()
    mistakes.collect(check_recipe, recipe.agent)
    mistakes.collect(check_labels, recipe)
    for name in recipe.retriever.track:
        mistakes.collect(find_tracker, name)
    if recipe.start.encoder is not None:
        mistakes.collect(check_encoder, recipe.start.encoder)
        if recipe.start.url is None:  # it is indexed before anything is trained
            kinds_by_retriever = {"sparse": ("sparse",), "late-interaction": ("late-interaction", "dense")}
            kinds = kinds_by_retriever.get(recipe.index.retriever, ("dense",))
            mistakes.collect(lambda encoder: check_retriever_of(encoder_folder(encoder), *kinds), recipe.start.encoder)
    mistakes.raise_all()


def requirements_of(labels: LabellingSettings) -> MakerRequirements:
    """The requirements of the labels' method."""
    return maker_module(labels.method).terms(method_settings(labels))


def method_settings(labels: LabellingSettings) -> Settings:
    """The method's own settings; methods that roll out take `samples` from `labels.samples`."""
    module = maker_module(labels.method)
    settings = make_settings(module.SETTINGS, labels.settings, f"labels.settings (labels.method={labels.method})")
    if not module.terms(settings).rolls_out:
        return settings
    if "samples" in labels.settings:
        raise SettingError("labels.samples says how many runs a question has; leave labels.settings.samples out")
    return settings.model_copy(update={"samples": labels.samples})


def check_labels(recipe: TogetherRecipe) -> None:
    """Refuse labels that cannot be made or trained on."""
    labels = recipe.labels
    method, terms = labels.method, requirements_of(labels)
    mistakes = ErrorList()
    if terms.scorer and labels.scorer is None:
        mistakes.add(
            f"labels.method={method} needs a scorer of passages; set labels.scorer to a model (a folder, a "
            "URL, a YAML file), oracle for laptop worlds, or gold for questions with gold passages"
        )
    if terms.likelihood and labels.likelihood is None:
        mistakes.add(
            f"labels.method={method} needs a model for the likelihood of answers; name its folder with "
            "labels.likelihood"
        )
    if terms.answers and not answers_itself(recipe.agent.protocol):
        mistakes.add(
            f"labels.method={method} asks whether the agent ends with the right answer, and an agent of the protocol "
            f"{recipe.agent.protocol} writes none; take labels.settings.{terms.answers}"
        )
    if recipe.retriever.loss.kind == "kl" and not terms.targets:
        mistakes.add(
            f"retriever.loss.kind=kl learns from targets, and labels.method={method} gives none; take "
            "retriever.loss.kind=contrastive, or labels.method=replug"
        )
    mistakes.collect(_check_names, recipe)
    mistakes.raise_all()


def _check_names(recipe: TogetherRecipe) -> None:
    """Refuse a missing scorer or likelihood model."""
    labels, data = recipe.labels, recipe.agent.data
    if labels.scorer == ORACLE and data.world is None and not is_world(Path(data.folder or "")):
        raise SettingError(
            "labels.scorer: the oracle knows laptop worlds only; name a model (a folder, a URL, a YAML file), or gold "
            "for questions with gold passages"
        )
    if labels.serve is not None and shutil.which(program := [*shlex.split(labels.serve), ""][0]) is None:
        raise SettingError(
            f"labels.serve: there is no program {program!r} here; install it, or serve the scorer elsewhere, name its "
            "address with labels.scorer, and set labels.serve=null"
        )
    for setting, name in (("scorer", labels.scorer), ("likelihood", labels.likelihood)):
        if name is None or name in (ORACLE, GOLD) or is_url(name):
            continue
        if not model_path(name).exists():
            raise DataError(missing("", name, f"labels.{setting}", shipped_models()))
