"""The recipe of an agent's training and measurement. Does not import torch.

A recipe may have stages. A stage replaces some settings of the recipe and starts from the weights of the stage before
(QAgent: first rewarded for its own answers, then for those of a generator).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field, field_validator, model_validator

from coseek.agents.factory import SCRIPTED
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.core.errors import SettingError, closest, nearest
from coseek.core.files import Json, JsonObject, read_yaml, real_path
from coseek.core.plugins import find_plugin, find_yaml, yaml_names
from coseek.core.settings import (
    MayChange,
    Replaces,
    Settings,
    apply_overrides,
    dump_settings,
    make_settings,
    merge_settings,
)
from coseek.data.dataset import EVERY, QuestionFilter
from coseek.data.maker import SynthesisGroup, WorldGroup, world_maker
from coseek.graders.factory import GraderSettings
from coseek.hardware.placement import Placement
from coseek.hub.card import UNKNOWN, License
from coseek.measure.score import check_metrics
from coseek.models.chat import ChatTemplate
from coseek.models.laptop import LaptopSettings
from coseek.rewards.reward import RewardSpec
from coseek.training.rl.settings import RlSettings, RolloutSettings
from coseek.training.sft.settings import KeptRunsSettings, RejectionSettings, SftSettings

EXPERT = "expert"
if TYPE_CHECKING:
    ExpertSettings = Settings
else:
    ExpertSettings = find_plugin("scripted agent", SCRIPTED, EXPERT).SETTINGS

RULES = "rules"
"""Name of the rule-based agent among the baselines of the table."""
PLAIN: JsonObject = {"prompt_template": "default", "warm_start": None}
"""The recipe without a name, for a model that follows instructions: the default of `AgentTrainer(model, …)`."""
RECIPES = Path(__file__).parent.parent / "recipes"
STAGED = ("about", "learn", "limits", "reward", "rejection", "rl", "select")
"""Settings that a stage may replace."""
TAKEN = ("start", "warm", "trained", "baseline")
"""Reserved names of policy folders."""


class DataSettings(Settings):
    """Corpus and questions: exactly one of `world` and `folder`."""

    world: WorldGroup | None = None
    """A laptop world, generated for the run, or the name of a reference world (`world-1`)."""
    folder: str | None = None
    """An existing data-set folder, of `coseek data import`."""
    synthesis: SynthesisGroup | None = None
    """How to generate questions from the passages of `folder` if it has no training split; null: it must have one."""
    unseen: WorldGroup | None = None
    """A second laptop world without training, for the last column of the table."""
    retriever: str = "bm25"
    """A retriever that `coseek index` can build."""
    retriever_settings: dict[str, bool | int | float | str] = Field(default={})
    """Settings of that retriever."""
    index: str | None = None
    """An existing retriever instead: an index folder, a URL, or a YAML file of parts."""
    view: str | None = None
    """A query view for an `index` that reads only the query: a name, or the path of a Python file."""
    training_retriever: dict[str, object] | None = None
    """The retriever of training rollouts instead of the index: the lines of a retriever's YAML file. `noisy` perturbs
    the index, `gold` puts the gold passages before it; `noisy` and `simulated` may follow a schedule over training."""
    train: str = "train"
    """Training split."""
    dev: str = "dev"
    """Split of the evaluations during training."""
    test: str = "test"
    """Split of the final measurement."""

    @property
    def searched(self) -> str | JsonObject | None:
        """The existing retriever, with its view; `None` if the index is built here."""
        return {"retriever": "viewed", "over": self.index, "view": self.view} if self.view else self.index

    def training_over(self, index: str | JsonObject, folder: str) -> JsonObject | None:
        """The lines of `training_retriever`. By default `noisy` and `gold` wrap `index`, and `gold` takes the questions
        of the data set `folder`."""
        lines = cast("JsonObject | None", self.training_retriever)
        defaults: dict[object, JsonObject] = {"noisy": {"over": index}, "gold": {"over": index, "data": folder}}
        return lines and {**defaults.get(lines.get("retriever"), {}), **lines}

    @field_validator("world", "unseen", mode="before")
    @classmethod
    def _resolve_world(cls, source: object) -> object:
        return world_maker().chosen({}, source) if isinstance(source, str) else source

    @model_validator(mode="after")
    def _one_source(self) -> "DataSettings":
        if self.view is not None and self.index is None:
            raise ValueError("data.view stands before data.index; an index made here has data.retriever_settings.view")
        if self.world is None and self.folder is None:
            raise ValueError("give exactly one of data.world and data.folder")
        if self.world is not None and self.folder is not None:
            # coseek's recipes name worlds; a user's data replace the unseen world, too.
            overrides = "data.world=null" + (" data.unseen=null" if self.unseen else "")
            problem = "data.world and data.folder are given, and exactly one is needed"
            raise ValueError(f"{problem}; set the others to null: {overrides}")
        return self


class PolicySettings(Settings):
    """The initial policy."""

    folder: str | None = None
    """The initial model: a shipped one (`base`) or a Hugging Face folder; null: a new laptop policy."""
    add_tag_tokens: bool = False
    """Add a token with a new embedding for each tag of the protocol. A small model otherwise spends half of its turn
    on spelling tags."""
    add_word_tokens: int = Field(default=0, ge=0)
    """Add tokens for this many words: the most frequent ones of the warm start's texts that the tokenizer of `folder`
    splits. Shortens what is read and written. Words added before count. No-op without a warm start."""
    laptop: LaptopSettings = LaptopSettings()
    """The laptop policy's shape."""

    @property
    def unchanged(self) -> str | None:
        """`folder`, if the policy starts from it as it is."""
        return None if self.add_tag_tokens or self.add_word_tokens else self.folder


class WarmStartSettings(Settings):
    """Supervised training on demonstrations."""

    demonstrator: Literal["expert", "evidence", "rules", "gold", "runs"] = "expert"
    """`expert` needs laptop worlds, or questions with gold paths and `worlds: 0`; `evidence` needs gold passages, and
    skips questions whose passages it does not find; `rules` works on any corpus; `gold` writes the gold answer at once,
    for protocols that only answer; `runs` are stored runs of any agent."""
    runs: tuple[str, ...] = ()
    """Run folders of `demonstrator: runs`, of the recipe's protocol."""
    keep: KeptRunsSettings = KeptRunsSettings()
    """Which of these runs are learnt from."""
    expert: ExpertSettings = ExpertSettings()
    """The expert's faults, for reinforcement learning to correct."""
    worlds: int = Field(default=30, ge=0)
    """Throw-away worlds of the expert, so that no fact can be memorised; 0: the training split."""
    world: WorldGroup = WorldGroup(size="compact", train=400, dev=0, test=0)
    """Settings of a throw-away world; seeds follow from the recipe's."""
    made: SynthesisGroup | None = None
    """How to generate more questions from the corpus; the expert demonstrates their train split, too (`worlds: 0`)."""
    renamed: int = Field(default=0, ge=0)
    """Copies of the training questions with exchanged names (`worlds: 0`, expert). A policy otherwise memorises few
    questions, and does not learn to copy names."""
    drills: float = Field(default=0.3, ge=0.0)
    """Reading drills of each throw-away world, as a share of its questions; they count as 0 hops."""
    asking: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the drills that ask for facts one by one, some of which are missing."""
    one_shot: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the questions also demonstrated in `direct` and `rag`, the table's baselines. No-op with `runs`."""
    known: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Share of examples on facts to be known without a search, if the data set has any (a laptop world with `known`):
    the questions of its split `known` and the marked training questions, demonstrated by the expert."""
    reading: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the questions that are also read as a frozen generator reads: gold passages among others, in the prompt
    `generator`. The policy can then serve as `graders.generator.model`."""
    also: dict[str, Annotated[float, Field(ge=0.0, le=1.0)]] = Field(default={})
    """Other protocols to teach, with the share of the questions demonstrated in each."""
    sft: SftSettings = SftSettings()
    """The supervised training."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "WarmStartSettings":
        for name in ("made", "renamed"):
            if getattr(self, name) and (self.demonstrator != "expert" or self.worlds):
                reason = f"only the expert demonstrates {name} questions, and not in throw-away worlds"
                raise ValueError(f"{name}: {reason}; set worlds=0")
        if self.demonstrator == "runs" and (self.also or self.reading):
            raise ValueError("also and reading: stored runs are learnt from alone; leave both out")
        return self

    @property
    def uses_worlds(self) -> bool:
        """Whether the demonstrations are of throw-away worlds."""
        return self.demonstrator == "expert" and self.worlds > 0


class SelectSettings(QuestionFilter):
    """The choice of training questions."""

    yes_no: bool = True
    """Keep questions whose answer is yes, no, true or false (004 drops them: such words match by chance)."""
    naive_rag: Literal["any", "wrong"] = "any"
    """`wrong`: only questions that the generator answers wrongly from naive RAG's passages (004)."""
    most: int | None = Field(default=None, ge=1)
    """Number of the chosen questions, drawn in proportion to the data sets."""


class TableSettings(Settings):
    """The final measurement."""

    questions: int | None = Field(default=800, ge=1)
    """Questions of each column, at most; a draw with every data set in its share. null: all."""
    select: Annotated[QuestionFilter, MayChange()] = EVERY
    """The test questions to draw from, such as `table.select.ids=FILE` (IRCoT's 500 of a set)."""
    per_set: int | None = Field(default=None, ge=1)
    """Questions of each data set, at most. A small set is then measured as well as a large one: of 2,000 questions
    drawn by share, 5 are Bamboogle's. null: all."""
    dev: bool = True
    """Whether the table includes the dev split. Without it the table takes a third less time."""
    sampled: bool = True
    """Whether the agent before and after training is also measured at temperature 1."""
    dev_questions: int | None = Field(default=200, ge=1)
    """Questions of the dev split for the gate and the learning curve, at most. null: all."""
    dev_per_set: int | None = Field(default=None, ge=1)
    """The same for each data set."""
    rag_passages: int = Field(default=4, ge=1)
    """Passages of naive RAG."""
    wide_rag: Annotated[int | None, MayChange()] = Field(default=None, ge=1)
    """Passages of a second naive RAG if the generator answers: as many as the agent's searches return together (s3: 9).
    null: only the baseline's."""
    baselines: tuple[str, ...] = ()
    """Protocols of further rows, for models that follow instructions without training: `direct`, `cot`, `rag`,
    `rag-rerank`, `ircot`, `search-o1` …; and `rules`, the agent without a model."""
    baseline_model: str | None = None
    """The model of these rows, a folder or a shipped model by name; null: the initial policy."""
    baseline_limits: dict[str, int | None] = Field(default_factory=dict)
    """Limits of these rows except naive RAG, over those that suit their protocols, such as `{max_turns: 4}`, which
    counts the opening search of IRCoT."""
    metrics: tuple[str, ...] | None = None
    """Metrics of the headline, such as `[cover_em, f1]`; null: the one nearest to the reward."""
    answer_with: tuple[str, ...] = ()
    """Generators (model folders or URLs) that also answer from the passages of every row (001, tables 2 and 3), with
    the context limits of `graders.generator`."""
    seed: int = 0
    """Seed of the drawn questions, of the rows at temperature 1, and of the bootstrap."""

    @field_validator("baseline_limits")
    @classmethod
    def _check_limits(cls, limits: dict[str, int | None]) -> dict[str, int | None]:
        make_settings(Limits, dict(limits), "table.baseline_limits")
        return limits

    @field_validator("metrics")
    @classmethod
    def _check_metric_names(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        check_metrics(names or ())
        if names == ():
            raise SettingError("table.metrics is empty; name a metric, or null for the one nearest to the reward")
        return names


class MachineSettings(Settings):
    """The machine that the estimates of a dry run assume."""

    devices: int = Field(default=1, ge=1)
    """Devices that share the work, with one process on each."""
    memory_gib: float = Field(default=8.0, gt=0.0)
    """Memory of one device (H100, A100: 80)."""
    tflops: float = Field(default=0.2, gt=0.0)
    """Peak arithmetic of one device, 10¹² operations a second (bfloat16, dense: H100 989, A100 312)."""
    update_mfu: float = Field(default=0.5, gt=0.0, le=1.0)
    """Model FLOPs utilisation of updates and of prefill."""
    rollout_mfu: float = Field(default=0.1, gt=0.0, le=1.0)
    """Model FLOPs utilisation of token-by-token decoding."""
    check: bool = True
    """Refuse a training whose estimated memory exceeds that of the device, before anything is loaded."""


class AgentRecipe(Placement):
    """The training and measurement of one agent. `precision` is that of sampling; learners have their own."""

    about: Annotated[str, MayChange()] = ""
    """A one-line description."""
    preset: str | None = None
    """`paper` (the recipe's own settings); `code`, where a paper's program differs; `laptop` (two cores and a generated
    world), `smollm` (two cores and real questions), `80gb`, `24gb` (one GPU), `14b`, `32b` (larger models); `strict`
    ends Search-R1's episodes at a turn without an action; `long-form` is for long answers. A record has them merged."""
    presets: Annotated[dict[str, dict[str, object]], Replaces()] = Field(default={})
    """Presets by name: the settings to replace, and with `extends` a preset or recipe to merge first. Empty once a
    preset is chosen."""
    seed: int = 0
    """Seed of everything but the worlds, which have their own."""
    license: License = UNKNOWN
    """Licence of the weights, for their model cards: apache-2.0, mit, other … May change on resume."""
    data: DataSettings
    """Corpus, questions and retriever."""
    protocol: str = "search-r1"
    """The agent's protocol."""
    tools: tuple[str, ...] = ()
    """More tools of the agent, for the protocol `tools` and its extensions: names, or paths of Python files."""
    prompt_template: str = "laptop"
    """The agent's prompt template."""
    chat_template: ChatTemplate = "auto"
    """Whether prompts use the model's chat template; `auto`: as the prompt template says, which is if the tokenizer has
    a chat template."""
    limits: Limits = Limits()
    """Budgets of every episode."""
    policy: PolicySettings = PolicySettings()
    """The model."""
    warm_start: WarmStartSettings | None = WarmStartSettings()
    """Supervised training before reinforcement learning; null for none."""
    reward: RewardSpec = Field(default={"exact_match": 1.0})
    """The reward's parts and weights."""
    graders: GraderSettings = GraderSettings()
    """Generator, judge and baseline of the reward."""
    learn: Literal["rl", "rejection", "demonstrations"] = "rl"
    """Training after the warm start: reinforcement learning, rejection sampling, or none."""
    rl: RlSettings = RlSettings()
    """Reinforcement learning."""
    rollout: Annotated[RolloutSettings, MayChange()] = RolloutSettings()
    """Where reinforcement learning samples."""
    rejection: RejectionSettings = RejectionSettings()
    """Rejection sampling."""
    select: SelectSettings = SelectSettings()
    """The choice of training questions."""
    stages: Annotated[dict[str, dict[str, object]], Replaces(merged=True)] = Field(default={})
    """Stages by name, in order, each with the settings it replaces (`about`, `learn`, `limits`, `reward`, `rejection`,
    `rl`, `select`). Empty: one stage with the settings above. The table uses the recipe's own `limits`."""
    concurrency: Annotated[int, MayChange()] = Field(default=256, ge=1)
    """Concurrent questions."""
    cache_gib: Annotated[float | None, MayChange()] = Field(default=None, gt=0.0)
    """Maximum memory of the sampler's key-value cache on one device, in GiB; more questions wait."""
    overlap: Annotated[bool, MayChange()] = False
    """Search while the policy samples: for servers and the web, not for a retriever that is the policy itself."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; all cores when not set. Results depend on the number."""
    track: Annotated[tuple[str, ...], MayChange()] = ()
    """Trackers that are sent `metrics.jsonl`: tensorboard, wandb, trackio, mlflow or a file. May change on resume."""
    table: TableSettings = TableSettings()
    """The final measurement."""
    machine: Annotated[MachineSettings, MayChange()] = MachineSettings()
    """Assumptions of a dry run's estimates."""

    @model_validator(mode="after")
    def _stages_can_be_made(self) -> "AgentRecipe":
        stages = [self.stage(name) for name in self.stages] or [self]
        if self.rollout.servers and not any(stage.learn == "rl" for stage in stages):
            raise ValueError("rollout.servers sample for reinforcement learning, and nothing here learns by it")
        for stage in stages:
            self.rollout.check(stage.rl)
        return self

    def load_protocol(self, name: str | None = None, *, run_files: bool = True) -> Protocol:
        """The agent's protocol, or another one, with the recipe's prompt template."""
        protocol, tools = name or self.protocol, self.tools if name in (None, self.protocol) else ()
        return load_protocol(protocol, self.prompt_template, self.chat_template, run_files=run_files, tools=tools)

    def agent_record(self, name: str, temperature: float, **others: Json) -> JsonObject:
        """An agent of this recipe as `run.yaml` describes it. `others`: a further field, or another protocol."""
        prompt: JsonObject = {"prompt_template": self.prompt_template, "chat_template": self.chat_template}
        return {"name": name, "protocol": self.protocol, **prompt, "temperature": temperature, **others}

    def stage(self, name: str) -> "AgentRecipe":
        """The recipe of one stage. Raises `SettingError` for a wrong name or setting."""
        if name in TAKEN or not name.replace("-", "").isalnum():
            raise SettingError(
                f"a stage cannot be named {name!r}; take letters, digits and dashes, and none of {', '.join(TAKEN)}"
            )
        stage_settings = cast(JsonObject, self.stages[name])
        if refused := [setting for setting in stage_settings if setting not in STAGED]:
            allowed = f"It may set: {', '.join(STAGED)}"
            raise SettingError(
                *(f"stage {name!r} cannot set {setting!r}{nearest(setting, STAGED)} {allowed}" for setting in refused)
            )
        tree = dump_settings(self)
        del tree["stages"]
        try:
            stage = make_settings(AgentRecipe, merge_settings(AgentRecipe, tree, stage_settings))
        except SettingError as error:
            raise SettingError(*(f"stage {name!r}: {sentence}" for sentence in error.sentences)) from None
        if stage.learn == "demonstrations":
            raise SettingError(f"stage {name!r} learns nothing; demonstrations come before the stages, in warm_start")
        return stage


def recipe_names() -> list[str]:
    """The names of coseek's recipes."""
    return yaml_names(RECIPES)


def preset_names(name: str) -> list[str]:
    """The presets of a recipe, except `paper`."""
    return [*cast(JsonObject, _read(recipe_path(name), ()).get("presets") or {})]


def recipe_path(name: str) -> Path:
    """The file of a recipe: coseek's by name (`quickstart`), or a path."""
    return find_yaml("recipe", RECIPES, name)


def parent_of(name: str) -> str | None:
    """The recipe that a recipe extends, as `load_recipe` takes it."""
    base = read_yaml(path := recipe_path(name), "recipe").get("extends")
    return str(_base_path(base, path)) if isinstance(base, str) else None


def load_recipe(name: str, overrides: Sequence[str] = ()) -> AgentRecipe:
    """Load a recipe by name or path, merged with the one it extends and with `a.b=c` overrides (values are YAML)."""
    return make_settings(AgentRecipe, *recipe_source(name, overrides), overrides)


def recipe_source(name: str, overrides: Sequence[str] = ()) -> tuple[JsonObject, Path | str]:
    """A recipe as plain values, and the file for error messages; empty for coseek's. Without a name it is `PLAIN`."""
    if not name:
        return apply_overrides({**PLAIN}, overrides, AgentRecipe), ""
    path = recipe_path(name)
    tree = _read(path, ())
    tree = _with_preset({**tree, **chosen_preset(overrides)}, tree)
    _check_stages(cast(JsonObject, tree.get("stages") or {}), overrides)
    tree = apply_overrides(tree, overrides, AgentRecipe)
    _check_laptop(tree.get("policy"), overrides)
    return tree, "" if path.parent == RECIPES else path


def _check_laptop(policy: Json, overrides: Sequence[str]) -> None:
    """Raise `SettingError` for a shape of the laptop policy where the recipe begins with another model."""
    folder = policy.get("folder") if isinstance(policy, dict) else None
    if folder is not None and (typed := next((text for text in overrides if text.startswith("policy.laptop")), None)):
        raise SettingError(
            f"{typed} has no effect, since the policy is policy.folder={folder}; add policy.folder=null, or take the "
            "recipe from-nothing"
        )


def _check_stages(stages: JsonObject, overrides: Sequence[str]) -> None:
    """Raise `SettingError` for a setting of a stage that does not exist."""
    paths = [override.partition("=")[0].split(".") for override in overrides]
    for names in paths:
        if len(names) > 2 and names[0] == "stages" and names[1] not in stages and ["stages"] not in paths:
            known_stages = f"It has: {', '.join(stages)}" if stages else "It has none"
            raise SettingError(f"the recipe has no stage {names[1]!r}{nearest(names[1], stages)} {known_stages}")


def chosen_preset(overrides: Sequence[str]) -> JsonObject:
    """`{preset: NAME}` if the overrides choose one, else empty."""
    return apply_overrides({}, [override for override in overrides if override.partition("=")[0] == "preset"])


def recipe_tree(source: Json, file: Path, preset: JsonObject) -> JsonObject:
    """A recipe inside another file: a name, a path relative to `file`, or settings, which may extend a recipe. `preset`
    is that of the command line (`chosen_preset`)."""
    if isinstance(source, str):
        tree = _read(_base_path(source, file), ())
    elif isinstance(source, dict):
        tree = _merge_over_base({**source, **preset}, file, ())
    else:
        raise SettingError(f"{file}: an agent's recipe is a name, a YAML file, or such lines, not {source!r}")
    return _with_preset({**tree, **preset}, tree)


def _read(path: Path, extending: Sequence[Path]) -> JsonObject:
    """A recipe file as a tree, merged with the recipe it extends. `extending`: the files that extend this one."""
    if real_path(path) in extending:
        chain = " → ".join(file.name for file in (*extending, path))
        raise SettingError(f"{path} extends itself ({chain}); leave out one `extends`")
    tree = read_yaml(path, "recipe")
    if isinstance(recorded := tree.get("recipe"), dict):  # a run's record
        tree = recorded
    return _merge_over_base(tree, path, (*extending, real_path(path)))


def _merge_over_base(tree: JsonObject, path: Path, extending: Sequence[Path]) -> JsonObject:
    """Merge the settings in the file `path` over the recipe that they extend."""
    base = tree.get("extends")
    if base is None:
        if (close_name := closest("extends", map(str, tree))) and close_name not in AgentRecipe.model_fields:
            raise SettingError(f"{path}: no setting named {close_name!r}; did you mean 'extends'?")
        return tree
    tree = {name: value for name, value in tree.items() if name != "extends"}
    if not isinstance(base, str):
        raise SettingError(f"{path}: `extends` names one recipe, not {base!r}")
    return merge_settings(AgentRecipe, _with_preset(tree, _read(_base_path(base, path), extending)), tree)


def _with_preset(chooser: JsonObject, tree: JsonObject) -> JsonObject:
    """`tree` with the settings of the preset that `chooser` names, unless they are merged already."""
    name, presets = chooser.get("preset"), cast(JsonObject, tree.get("presets") or {})
    if name is None or (tree.get("preset") == name and tree.get("presets") == {}):
        return tree
    presets = {"paper": {}, **presets}
    if str(name) not in presets:
        hint = nearest(str(name), presets)
        raise SettingError(f"the recipe has no preset {name!r}{hint} Known: {', '.join(presets)}")
    chosen = dict(cast(JsonObject, presets[str(name)]))
    if base := str(chosen.pop("extends", "")):
        if base in presets and base != name:  # another preset of this recipe
            tree = _with_preset({"preset": base}, tree)
        else:
            tree = merge_settings(AgentRecipe, tree, _read(recipe_path(base), ()))
    return {**merge_settings(AgentRecipe, tree, chosen), "preset": name, "presets": {}}


def _base_path(base: str, path: Path) -> Path:
    return recipe_path(str(path.parent / base) if base.endswith((".yaml", ".yml")) else base)
