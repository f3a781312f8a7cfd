"""Recipe: everything that decides how an agent is trained and measured, in one file. Does not import torch.

A recipe may have stages. A stage is the recipe with some of its settings replaced, and begins with the weights that the
stage before it ended with (QAgent: first paid for its own answers, then for those of a frozen generator).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, cast

from pydantic import Field, model_validator

from coseek.agents.rollout import Limits
from coseek.agents.scripted.expert import ExpertSettings
from coseek.core.errors import SettingError, nearest
from coseek.core.files import Json, JsonObject, read_yaml
from coseek.core.registry import find_yaml
from coseek.core.settings import Settings, apply_overrides, dump_settings, make_settings, merge_settings
from coseek.hardware.precision import Replaces, SamplingPrecision
from coseek.models.laptop import LaptopSettings
from coseek.pipelines.grader_settings import ORACLE, GraderSettings
from coseek.retrieval.vectors.encoder import is_shipped
from coseek.rewards.reward import RewardSpec
from coseek.training.rl.settings import RlSettings
from coseek.training.sft.settings import RejectionSettings, SftSettings
from coseek.world.settings import WorldSettings

RECIPES = Path(__file__).parent.parent / "recipes"
STAGED = ("about", "learn", "limits", "reward", "rejection", "rl", "select")
"""What a stage may set."""
TAKEN = ("start", "warm", "trained")
"""Folders of `policy/` that no stage may be called after."""


class ImportSettings(Settings):
    """Real data in somebody else's format."""

    format: str
    """One of the formats of `coseek data import`."""
    sources: tuple[str, ...]
    """Files, or folders of them."""
    shares: dict[str, float] = Field(default={"train": 0.6, "dev": 0.1, "test": 0.3})
    """How the questions are dealt out to splits, by a hash of their ids."""


class DataSettings(Settings):
    """What is searched and asked: exactly one of `world`, `imported` and `folder`."""

    OLD_NAMES: ClassVar[dict[str, str]] = {"engine": "training_retriever"}

    world: WorldSettings | None = None
    """A laptop world, made for the run."""
    imported: ImportSettings | None = None
    """Real data, read for the run."""
    folder: str | None = None
    """A data-set folder that is there already."""
    unseen: WorldSettings | None = None
    """A second laptop world that nothing was trained on, for the last column of the table."""
    retriever: str = "bm25"
    """What searches: a retriever that `coseek index` can build."""
    retriever_settings: dict[str, bool | int | float | str] = Field(default={})
    """Settings of that retriever."""
    index: str | None = None
    """What searches instead, and is there already: an index folder, a URL, or a YAML file of parts."""
    training_retriever: dict[str, object] | None = None
    """What searches while rewards are earned, in place of the index: the lines of a retriever's YAML file. `noisy` is
    laid over the index; it and `simulated` hear how far training is, and get worse as they are told to."""
    train: str = "train"
    """Split that the agent is trained on."""
    dev: str = "dev"
    """Split that is looked at during training."""
    test: str = "test"
    """Split that is looked at once, at the end."""

    @model_validator(mode="after")
    def _one_source(self) -> "DataSettings":
        given = [name for name in ("world", "imported", "folder") if getattr(self, name) is not None]
        if not given:
            raise ValueError("give exactly one of data.world, data.imported and data.folder")
        if len(given) > 1:
            # Our recipes name worlds. Who brings data of their own is not interested in an unseen world either.
            others = [*given[:-1], *(["unseen"] if self.world and self.unseen else [])]
            raise ValueError(
                f"data.{' and data.'.join(given)} are given, and exactly one is needed; set the others to null: "
                f"{' '.join(f'data.{name}=null' for name in others)}"
            )
        return self


class PolicySettings(Settings):
    """Where the policy comes from."""

    folder: str | None = None
    """A Hugging Face folder to start from; without one a laptop policy is made."""
    marks: bool = False
    """Give the folder's tokenizer one token for each tag of the protocol, with a vector of its own to be learnt. A
    small model spends half of its turn on tags that it has to spell."""
    laptop: LaptopSettings = LaptopSettings()
    """The laptop policy's shape."""


class WarmStartSettings(Settings):
    """Demonstrations, and supervised training on them."""

    OLD_NAMES: ClassVar[dict[str, str]] = {"writer": "demonstrator"}

    demonstrator: Literal["expert", "rules", "gold"] = "expert"
    """Who demonstrates. The expert needs laptop worlds; `rules` works on any corpus; `gold` writes the gold answer at
    once, for protocols that only answer."""
    expert: ExpertSettings = ExpertSettings()
    """The expert's faults: what is left for reinforcement learning to mend."""
    worlds: int = Field(default=30, ge=0)
    """Throw-away worlds that the expert demonstrates in, so that no fact can be memorised; 0: the training split."""
    world: WorldSettings = WorldSettings(size="compact", train=400, dev=0, test=0)
    """What a throw-away world is like; its seed is the recipe's, and others for every world."""
    drills: float = Field(default=0.3, ge=0.0)
    """Reading drills in each throw-away world, as a share of its questions; their questions have 0 hops."""
    one_shot: float = Field(default=0.1, ge=0.0, le=1.0)
    """Questions that are also demonstrated in the protocols `direct` and `rag`, as a share: the table's baselines."""
    also: dict[str, float] = Field(default={})
    """Protocols that are taught besides the agent's own, and the share of the questions demonstrated in each."""
    sft: SftSettings = SftSettings()
    """The supervised training."""


class SelectSettings(Settings):
    """Which questions of the training split are trained on."""

    hops: tuple[int, ...] | None = None
    """Only questions of these numbers of hops."""
    yes_no: bool = True
    """Keep questions whose answer is yes, no, true or false (004 does not: words find them in their opposites)."""
    naive_rag: Literal["any", "wrong"] = "any"
    """`wrong`: only questions that the frozen generator answers wrongly from naive RAG's passages (004)."""
    most: int | None = Field(default=None, ge=1)
    """At most so many: the first ones that are left."""


class MachineSettings(Settings):
    """What the estimates of a dry run assume. Nothing that is trained depends on it."""

    devices: int = Field(default=1, ge=1)
    """Devices that share the work."""
    memory_gib: float = Field(default=8.0, gt=0.0)
    """Memory of one device (H100, A100: 80)."""
    tflops: float = Field(default=0.2, gt=0.0)
    """Peak arithmetic of one device, 10¹² operations a second (bfloat16, dense: H100 989, A100 312)."""
    update_mfu: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the peak that updates, and reading prompts and documents, reach."""
    rollout_mfu: float = Field(default=0.1, gt=0.0, le=1.0)
    """Share of the peak that writing token by token reaches."""


class TableSettings(Settings):
    """The last measurement."""

    questions: int = Field(default=800, ge=1)
    """Questions of each set, at most."""
    dev_questions: int = Field(default=200, ge=1)
    """Questions of the dev split that the gate and the learning curve look at."""
    rag_passages: int = Field(default=4, ge=1)
    """Passages that naive RAG is given."""
    wide_rag: int | None = Field(default=None, ge=1)
    """Passages of a second naive RAG beside an agent for which the generator answers: as many as the agent's searches
    find together (s3: 9). None: only the baseline's."""
    seed: int = 0
    """Seed of the sampled rows at temperature 1, and of the bootstrap."""


class AgentRecipe(Settings):
    """How one agent is trained and measured."""

    OLD_NAMES: ClassVar[dict[str, str]] = {"wording": "prompt_template", "frozen": "graders"}

    about: str = ""
    """One line for people."""
    seed: int = 0
    """Everything random in the run follows from it, but for the worlds, which have seeds of their own."""
    data: DataSettings
    """What is searched and asked."""
    protocol: str = "search-r1"
    """The agent's protocol."""
    prompt_template: str = "laptop"
    """The agent's prompt template."""
    limits: Limits = Limits()
    """Budgets of every episode."""
    policy: PolicySettings = PolicySettings()
    """The model."""
    warm_start: WarmStartSettings | None = WarmStartSettings()
    """Supervised training before the rewards; none to start reinforcement learning at once."""
    reward: RewardSpec = Field(default={"exact_match": 1.0})
    """What the agent is paid for."""
    graders: GraderSettings = GraderSettings()
    """The models that a reward may ask, and what a gain is measured against."""
    learn: Literal["rl", "rejection", "demonstrations"] = "rl"
    """How the agent learns after the warm start: from rewards, from those of its own runs that were right, or not."""
    rl: RlSettings = RlSettings()
    """Reinforcement learning."""
    rejection: RejectionSettings = RejectionSettings()
    """Rejection sampling."""
    select: SelectSettings = SelectSettings()
    """Which questions are trained on."""
    stages: Annotated[dict[str, dict[str, object]], Replaces()] = Field(default={})
    """Stages by name, in order; each says what it replaces (`about`, `learn`, `limits`, `reward`, `rejection`, `rl`,
    `select`). None: one stage with the settings above. The table is measured within the recipe's own `limits`."""
    concurrency: int = Field(default=256, ge=1)
    """Questions under way at once."""
    overlap: bool = False
    """Search while the policy writes on: for servers and the web; never for an engine that is the policy itself."""
    precision: SamplingPrecision = "float32"
    """Of weights and cache while sampling; `auto` is what is fastest on this machine for a policy of this width."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; as many as there are cores when not set. Results are the same only for the same number."""
    track: tuple[str, ...] = ()
    """Experiment trackers that are sent every row of `metrics.jsonl`: tensorboard, wandb, trackio, mlflow, or the path
    of a Python file. They change no result, and may change when a run goes on."""
    table: TableSettings = TableSettings()
    """The last measurement."""
    machine: MachineSettings = MachineSettings()
    """What the estimates of a dry run assume."""

    @model_validator(mode="after")
    def _stages_can_be_made(self) -> "AgentRecipe":
        for name in self.stages:
            self.stage(name)
        return self

    def stage(self, name: str) -> "AgentRecipe":
        """The recipe of one stage: this one with what the stage replaces."""
        if name in TAKEN or not name.replace("-", "").isalnum():
            raise SettingError(
                f"a stage cannot be named {name!r}; take letters, digits and dashes, and none of {', '.join(TAKEN)}"
            )
        own = cast(JsonObject, self.stages[name])
        if odd := [setting for setting in own if setting not in STAGED]:
            known = f"It may set: {', '.join(STAGED)}"
            raise SettingError(
                *(f"stage {name!r} cannot set {setting!r}{nearest(setting, STAGED)} {known}" for setting in odd)
            )
        tree = dump_settings(self)
        del tree["stages"]
        try:
            stage = make_settings(AgentRecipe, merge_settings(AgentRecipe, tree, own))
        except SettingError as error:
            raise SettingError(*(f"stage {name!r}: {sentence}" for sentence in error.sentences)) from None
        if stage.learn == "demonstrations":
            raise SettingError(f"stage {name!r} learns nothing; demonstrations come before the stages, in warm_start")
        return stage


class RecipePath(NamedTuple):
    """A path that a recipe names."""

    setting: str
    path: Path
    holds: Literal["data", "index", "model"]


def paths_of(recipe: AgentRecipe) -> Iterator[RecipePath]:
    """Every path of this machine that a recipe names; URLs are no paths."""
    data, engine = recipe.data, recipe.data.training_retriever or {}
    for source in data.imported.sources if data.imported else ():
        yield RecipePath("data.imported.sources", Path(source).expanduser(), "data")
    named: list[tuple[str, object, Literal["data", "index", "model"]]] = [
        ("data.folder", data.folder, "data"),
        ("data.index", data.index, "index"),
        ("data.training_retriever.over", engine.get("over"), "index"),
        ("data.training_retriever.model", engine.get("model"), "model"),
        ("data.training_retriever.questions", engine.get("questions"), "data"),
        ("data.retriever_settings.encoder", None if data.index else _encoder(data), "model"),
        ("policy.folder", recipe.policy.folder, "model"),
    ]
    if (generator := recipe.graders.generator) is not None:
        named.append(("graders.generator.model", generator.model, "model"))
        named.append(("graders.generator.counted_by", generator.counted_by, "model"))
    if (judge := recipe.graders.judge) is not None and judge.model != ORACLE:
        named.append(("graders.judge.model", judge.model, "model"))
    for setting, name, holds in named:
        if isinstance(name, str) and not name.startswith(("http://", "https://")):
            yield RecipePath(setting, Path(name).expanduser(), holds)
    if data.folder is not None and (folder := Path(data.folder).expanduser()).is_dir():
        taught_there = recipe.warm_start is not None and recipe.warm_start.worlds == 0
        splits = [("data.train", data.train)] if taught_there or recipe.learn != "demonstrations" else []
        for setting, split in [*splits, ("data.dev", data.dev), ("data.test", data.test)]:
            yield RecipePath(setting, folder / f"questions.{split}.jsonl", "data")


def _encoder(data: DataSettings) -> object:
    """The folder of the encoder that vectors are made with; nothing for one that a package ships."""
    named = data.retriever_settings.get("encoder")
    return None if isinstance(named, str) and is_shipped(named) else named


def recipe_names() -> list[str]:
    """The recipes that are ours."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """The file of a recipe: one of ours by name (`quickstart`), or a path."""
    return find_yaml("recipe", RECIPES, name)


def load_recipe(name: str, overrides: Sequence[str] = ()) -> AgentRecipe:
    """One of our recipes by name, or a file, laid over what it extends; then `a.b=c` overrides (values are YAML)."""
    return make_settings(AgentRecipe, *recipe_source(name, overrides), overrides)


def recipe_source(name: str, overrides: Sequence[str] = ()) -> tuple[JsonObject, Path | str]:
    """A recipe as plain values, and the file that a mistake in it is in; empty for ours."""
    path = recipe_path(name)
    return apply_overrides(_read(path, ()), overrides), "" if path.parent == RECIPES else path


def recipe_tree(given: Json, file: Path) -> JsonObject:
    """A recipe that another file names: one of ours, a path seen from `file`, or lines in it, which may extend one."""
    if isinstance(given, str):
        return _read(_base_path(given, file), ())
    if not isinstance(given, dict):
        raise SettingError(f"{file}: an agent's recipe is a name, a YAML file, or such lines, not {given!r}")
    return _laid_over_base(given, file, ())


def _read(path: Path, above: Sequence[Path]) -> JsonObject:
    """A recipe file as a tree, laid over the recipe that it extends: a name of ours, or a path seen from the file."""
    if path.resolve() in above:
        chain = " → ".join(file.name for file in (*above, path))
        raise SettingError(f"{path} extends itself ({chain}); leave out one `extends`")
    tree = read_yaml(path, "recipe")
    if isinstance(inside := tree.get("recipe"), dict):  # what a run wrote down, with versions and commit beside it
        tree = inside
    return _laid_over_base(tree, path, (*above, path.resolve()))


def _laid_over_base(tree: JsonObject, path: Path, above: Sequence[Path]) -> JsonObject:
    """The lines of a recipe in the file `path`, laid over what they extend."""
    base = tree.get("extends")
    tree = {name: value for name, value in tree.items() if name != "extends"}
    if base is None:
        return tree
    if not isinstance(base, str):
        raise SettingError(f"{path}: `extends` names one recipe, not {base!r}")
    below = _read(_base_path(base, path), above)
    merged = merge_settings(AgentRecipe, below, tree)
    merged["stages"] = _stages(below.get("stages"), tree.get("stages"))
    return merged


def _base_path(base: str, path: Path) -> Path:
    return recipe_path(str(path.parent / base) if base.endswith((".yaml", ".yml")) else base)


def _stages(below: Json, above: Json) -> Json:
    """Stages are laid over those of the same name; new ones follow."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above if above is not None else below or {}
    merged = dict(below)
    for name, stage in above.items():
        under = merged.get(name)
        both = isinstance(under, dict) and isinstance(stage, dict)
        merged[name] = merge_settings(AgentRecipe, cast(JsonObject, under), cast(JsonObject, stage)) if both else stage
    return merged
