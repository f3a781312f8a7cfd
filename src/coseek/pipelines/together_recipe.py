"""Recipe of co-training: everything that decides how an agent and a retriever train each other. Does not import torch.

Paper 000, algorithm 1. In round i agent i learns over retriever i-1; its runs over that retriever are labelled with the
candidates of that retriever; retriever i learns from the labels. Agent 0 is the agent after its warm start, retriever 0
an encoder that is there, or one made from nothing. What a round gives to its agent and its retriever (data, index,
where they begin, labels) is no setting of theirs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from coseek.core.errors import SettingError, UnknownName
from coseek.core.files import Json, JsonObject, read_yaml
from coseek.core.registry import find_yaml
from coseek.core.settings import Settings, apply_overrides, dump_settings, make_settings
from coseek.measure.score import METRICS
from coseek.pipelines.agent_recipe import AgentRecipe, recipe_tree
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe, retriever_recipe_names

RECIPES = Path(__file__).parent.parent / "recipes" / "together"
GIVEN = "(the round's)"
"""Stands in the retriever's recipe for what each round gives it: its labels, and the encoder that it begins with."""

Plain: TypeAlias = bool | int | float | str


class StartSettings(Settings):
    """Retriever 0: exactly one of `encoder` and `recipe`."""

    encoder: str | None = None
    """A sentence-transformers folder, or an encoder that a package ships (`minilm`)."""
    recipe: RetrieverRecipe | None = None
    """How one is made from nothing; in a file also the name of a retriever recipe."""
    index: dict[str, Plain] = Field(default={})
    """Settings of its index that its own card does not say: `view`, `query_prompt`, `passage_prompt` … Retrievers that
    are trained bring a card with all of them."""

    @model_validator(mode="after")
    def _one_source(self) -> "StartSettings":
        if (self.encoder is None) == (self.recipe is None):
            raise SettingError("give either start.encoder (a folder, or minilm) or start.recipe (a retriever recipe)")
        return self


class IndexSettings(Settings):
    """How the corpus is indexed with every encoder."""

    retriever: Literal["dense", "hnsw", "ivf-pq"] = "dense"
    """A retriever that searches vectors."""
    settings: dict[str, Plain] = Field(default={})
    """Its settings, such as `search: int8`."""


class LabellingSettings(Settings):
    """How the runs of a round become labels."""

    method: str = "agentic-r"
    """One of the methods of `coseek label`."""
    settings: dict[str, object] = Field(default={})
    """The method's own settings."""
    scorer: str | None = None
    """Who scores passages, for methods that ask: `oracle` (the laptop world's), `gold`, or a model."""
    likelihood: str | None = None
    """Which model says how likely answers are, for methods that ask."""
    questions: int = Field(default=300, ge=1)
    """Training questions that the agent is asked, at most; every round draws its own."""
    samples: int = Field(default=1, ge=1)
    """Runs of each question."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of these runs, whoever makes them: the round, or a method that rolls out itself."""
    branch_temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature of the agent when it goes on from a candidate passage."""

    @model_validator(mode="after")
    def _runs_differ(self) -> "LabellingSettings":
        if self.samples > 1 and self.temperature == 0:
            raise SettingError(
                f"labels.samples={self.samples} at labels.temperature=0 would be one run {self.samples} times; raise "
                "labels.temperature"
            )
        return self


class StopSettings(Settings):
    """When a round is the last one although there could be more: it did not help."""

    metric: str | None = None
    """What has to rise, on questions of the dev split, from the agent and retriever of one round to those of the next;
    the headline of the agent's recipe when not set."""
    least: float = 0.0
    """By how much it has to rise at least; 0: it must not fall."""
    questions: int = Field(default=200, ge=1)
    """Questions of the dev split, at most. The test split decides nothing."""

    @field_validator("metric")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None and name not in METRICS:
            raise UnknownName("metric", name, METRICS)
        return name


class PairsSettings(Settings):
    """The table: every agent over every retriever, greedily, on the test split."""

    questions: int = Field(default=200, ge=1)
    """Questions, at most."""
    seed: int = 0
    """Of the runs, and of the bootstrap."""
    beside: bool = True
    """One column more for the retriever that the agent's recipe names itself (BM25 mostly), which no round trains."""


class TogetherRecipe(Settings):
    """How an agent and a retriever are trained in rounds, and measured."""

    about: str = ""
    """One line for people."""
    seed: int = 0
    """Every round's agent and retriever get seeds of their own from it; the worlds and the warm start keep theirs."""
    rounds: int = Field(default=2, ge=1)
    """Rounds at most (000: 2); may be raised when a run goes on."""
    agent: AgentRecipe
    """The agent's recipe; in a file also its name, or lines that extend one. `data` says what is asked and searched,
    `warm_start` makes agent 0, and what follows is done in every round."""
    agent_begins: Literal["previous", "start"] = "previous"
    """The weights that an agent begins with: those of the round before, or those of agent 0 again."""
    start: StartSettings
    """Retriever 0; in a file also the name of a retriever recipe, or of an encoder."""
    index: IndexSettings = IndexSettings()
    """How the corpus is indexed with every encoder."""
    labels: LabellingSettings = LabellingSettings()
    """How the runs of a round become labels."""
    retriever: RetrieverRecipe
    """The retriever's recipe, without labels and encoder, which are the round's."""
    retriever_begins: Literal["previous", "start"] = "previous"
    """The encoder that a retriever begins with: that of the round before, or retriever 0 again."""
    stop: StopSettings | None = StopSettings()
    """When to stop early; none never does."""
    pairs: PairsSettings = PairsSettings()
    """The table."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of everything; as many as there are cores when not set. Results are the same only for the same
    number."""

    @field_validator("retriever", mode="before")
    @classmethod
    def _given_by_the_round(cls, tree: object) -> object:
        if not isinstance(tree, dict):
            return tree
        given: dict[str, object] = {"labels": [GIVEN], "encoder": GIVEN, "lessons": None}
        for name, value in given.items():
            said = tree.get(name, value)
            if (list(said) if isinstance(said, tuple) else said) != value:
                raise SettingError(f"every round gives its retriever labels and encoder; leave retriever.{name} out")
        return {**tree, **given}

    @model_validator(mode="after")
    def _every_round_trains(self) -> "TogetherRecipe":
        if self.agent.learn == "demonstrations" and not self.agent.stages:
            raise SettingError("an agent with learn: demonstrations learns nothing in a round; take agent.learn=rl")
        return self


def together_recipe_names() -> list[str]:
    """The recipes that are ours."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def together_recipe_path(name: str) -> Path:
    """The file of a recipe: one of ours by name, or a path."""
    return find_yaml("co-training recipe", RECIPES, name)


def load_together_recipe(name: str, overrides: Sequence[str] = ()) -> TogetherRecipe:
    """One of our recipes by name, or a file; then `a.b=c` overrides (values are YAML)."""
    file = together_recipe_path(name)
    tree = read_yaml(file, "co-training recipe")
    if isinstance(inside := tree.get("recipe"), dict):  # what a run wrote down, with versions and commit beside it
        tree = inside
    typed = apply_overrides({}, [text for text in overrides if "." not in text.partition("=")[0]])
    inner = [text for text in overrides if "." in text.partition("=")[0]]
    resolved = {**_resolved(tree, file), **_resolved(typed, Path("the command line"))}
    return make_settings(
        TogetherRecipe, apply_overrides(resolved, inner), "" if file.parent == RECIPES else file, overrides
    )


def _resolved(tree: JsonObject, file: Path) -> JsonObject:
    """The recipes inside a recipe, read where they are only named; paths are seen from the file."""
    inside = {"agent": lambda given: recipe_tree(given, file), "start": _start, "retriever": _retriever}
    return {
        name: inside[name](value) if name in inside and value is not None else value for name, value in tree.items()
    }


def _start(given: Json) -> Json:
    """`laptop`, `minilm`, a folder or a YAML file stand for `{recipe: …}` or `{encoder: …}`."""
    if isinstance(given, str):
        is_recipe = given in retriever_recipe_names() or given.endswith((".yaml", ".yml"))
        given = {"recipe" if is_recipe else "encoder": given}
    if isinstance(given, dict) and isinstance(named := given.get("recipe"), str):
        return {**given, "recipe": dump_settings(load_retriever_recipe(named))}
    return given


def _retriever(given: Json) -> Json:
    if not isinstance(given, str):
        return given
    return {**dump_settings(load_retriever_recipe(given, labels=[GIVEN])), "encoder": GIVEN}
