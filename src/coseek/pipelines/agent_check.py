"""Checks of recipes, before torch is imported and anything is written. All mistakes are raised as one error."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from coseek.agents.agent_card import CARD, AgentCard
from coseek.agents.protocol import Protocol
from coseek.core.connections import is_url
from coseek.core.errors import DataError, ErrorList, SettingError, UnknownName, nearest
from coseek.core.plugins import function_module, is_function
from coseek.core.settings import make_settings, without
from coseek.data.dataset import Dataset
from coseek.graders.factory import ORACLE, check_graders
from coseek.graders.generator import load_generator_prompt
from coseek.graders.judge import is_world, load_judge_prompt
from coseek.graders.scoring import TrajectoryScorer
from coseek.labels.label_folder import LabelFolder
from coseek.models.laptop import check_shape
from coseek.models.model_folder import missing, model_path, of_another_kind, shipped_models
from coseek.models.new_tokens import new_tags
from coseek.pipelines.agent_recipe import RULES, AgentRecipe, DataSettings, load_recipe, recipe_source
from coseek.pipelines.data_folder import check_data_folder, missing_splits
from coseek.pipelines.stages import select_settings, stages_of
from coseek.retrieval.factory import OpenContext, require_library
from coseek.retrieval.index import check_retriever, retriever_names
from coseek.retrieval.vectors.encoder import EncoderCard, encoder_folder, is_cross_encoder, is_shipped
from coseek.rewards.reward import make_reward
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.learner.settings import LearnerSettings
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backend import check_backend, episode_loop
from coseek.training.rl.policy_loss import open_policy_loss
from coseek.training.tracker import find_tracker

LAPTOP_READER = Path("runs/generator/generator")
"""The frozen generator of the laptop's recipes."""

SPLITS = ("train", "dev", "test")
"""The splits of a world, and the settings that name one."""


Kind = Literal["corpus", "questions", "data", "ids", "index", "run", "model", "tokenizer", "encoder", "world"]
HELD: dict[Kind, list[str]] = {
    "corpus": ["corpus.jsonl"], "questions": ["questions.*.jsonl"], "index": ["index.json"], "run": ["run.yaml"],
    "model": ["config.json", "*.safetensors|*.bin"], "tokenizer": ["*.json"], "encoder": ["*.json"],
}  # fmt: skip
"""What a folder of a kind holds, by patterns; `|` separates alternatives. The files of splits have paths of their own.
"""


class RecipePath(NamedTuple):
    """A path that a recipe names."""

    setting: str
    path: Path
    kind: Kind

    @property
    def is_model(self) -> bool:
        return self.kind in ("model", "tokenizer", "encoder")

    @property
    def shipped(self) -> list[str]:
        """The shipped models that the setting may name."""
        return shipped_models("encoder" if self.kind == "encoder" else "policy")


def checked_recipe(name: str, overrides: Sequence[str] = ()) -> AgentRecipe:
    """Load and check a recipe. Raises one error for unknown settings and for missing files together."""
    mistakes = ErrorList()
    recipe = mistakes.collect(load_recipe, name, overrides)
    if recipe is None and isinstance(error := mistakes.errors[0], SettingError) and error.places:
        # Without the wrong settings, the others can be checked, too.
        tree = without(recipe_source(name, overrides)[0], error.places)
        with suppress(SettingError):  # a removed setting was required
            recipe = None if tree is None else make_settings(AgentRecipe, tree)
    if recipe is not None:
        mistakes.collect(check_recipe, recipe)
    mistakes.raise_all()
    assert recipe is not None
    return recipe


def check_recipe(recipe: AgentRecipe) -> None:
    """Refuse missing or wrong paths and settings that contradict each other; all mistakes in one error."""
    mistakes = ErrorList()
    mistakes.collect(check_paths, recipe)
    mistakes.collect(check_settings, recipe)
    mistakes.raise_all()


def check_paths(recipe: AgentRecipe) -> None:
    """Refuse missing paths, and folders of another kind."""
    mistakes = ErrorList()
    for entry in paths_of(recipe):
        if entry.setting == "data.folder" and recipe.data.synthesis is not None:
            mistakes.collect(check_data_folder, str(entry.path), entry.setting, recipe.data.train)
        else:
            mistakes.collect(_check_path, entry)
    data = recipe.data
    if data.folder is not None and (folder := Path(data.folder)).is_dir():
        dataset = Dataset(folder)
        if data.synthesis is None or data.train in dataset.splits:
            mistakes.collect(missing_splits, dataset, data)  # dev and test may be set aside from training questions
    mistakes.raise_all()


def check_settings(recipe: AgentRecipe) -> None:
    """Refuse settings that contradict each other. Opens no file that the recipe names by path."""
    mistakes, graders, warm_start = ErrorList(), recipe.graders, recipe.warm_start
    for stage in stages_of(recipe, Path()):
        mistakes.collect(_check_stage, stage.recipe)
        if stage.recipe.learn == "rl":
            mistakes.collect(open_algorithm, stage.recipe.rl)
            mistakes.collect(open_policy_loss, stage.recipe.rl)
            mistakes.collect(check_backend, stage.recipe.rl)
            if (loop := mistakes.collect(episode_loop, stage.recipe.rl)) is not None:
                mistakes.collect(loop.check, stage.recipe)
    mistakes.collect(taught_protocols, recipe)
    mistakes.collect(check_baselines, recipe)
    for name in recipe.track:
        mistakes.collect(find_tracker, name)
    mistakes.collect(_check_data, recipe.data)
    mistakes.collect(_check_new_tokens, recipe)
    if warm_start is None and recipe.learn == "demonstrations":
        mistakes.add("learn: demonstrations needs some; give the recipe a warm_start")
    if warm_start is not None and warm_start.uses_worlds and recipe.data.world is None:
        mistakes.add(
            "the expert's throw-away worlds are laptop worlds; for other data take warm_start.demonstrator=rules, or "
            "warm_start.worlds=0 where questions have a path"
        )
    if warm_start is not None and (warm_start.demonstrator == "runs") != bool(warm_start.runs):
        mistakes.add("warm_start.demonstrator=runs and the folders in warm_start.runs belong together; give both")
    if warm_start is not None and warm_start.demonstrator == "runs":
        mistakes.collect(TrajectoryScorer, make_reward(warm_start.keep.reward))
    if graders.generator is not None:
        mistakes.collect(load_generator_prompt, graders.generator)
    if graders.judge is not None:
        mistakes.collect(load_judge_prompt, graders.judge)
    if recipe.policy.folder is None:
        mistakes.collect(check_shape, recipe.policy.laptop)
    mistakes.raise_all()


def check_baselines(recipe: AgentRecipe, retrievers: Collection[str] = ()) -> None:
    """Refuse unknown baselines of the table, and baselines whose protocol needs another retriever."""
    mistakes = ErrorList()
    for name in recipe.table.baselines:
        if name != RULES and (protocol := mistakes.collect(recipe.load_protocol, name, run_files=False)) is not None:
            for retriever in retrievers:
                mistakes.collect(protocol.check_retriever, retriever)
    mistakes.raise_all()


def _first_learner(recipe: AgentRecipe) -> tuple[str, LearnerSettings]:
    """The first training: the name of its `lora` setting, and its learner."""
    if recipe.warm_start is not None:
        return "warm_start.sft.learner.lora", recipe.warm_start.sft.learner
    first = stages_of(recipe, Path())[0]
    prefix = f"stages.{first.name}." if first.name else ""
    if first.recipe.learn == "rejection":
        return f"{prefix}rejection.sft.learner.lora", first.recipe.rejection.sft.learner
    return f"{prefix}rl.policy.lora", first.recipe.rl.policy


def _check_new_tokens(recipe: AgentRecipe) -> None:
    """Refuse new tokens whose vectors would stay untrained: adapters do not train them, and without a warm start an
    agent that has learnt to spell its tags would not know them as tokens."""
    policy, taught_first = recipe.policy, recipe.warm_start is not None
    if policy.unchanged is not None or not (taught_first or stages_of(recipe, Path())):
        return
    setting, first = _first_learner(recipe)
    tags: list[str] = []
    if policy.folder is not None and policy.add_tag_tokens:
        special_tokens = (tag for protocol in taught_protocols(recipe) for tag in protocol.grammar.special_tokens)
        tags = new_tags(model_path(policy.folder), special_tokens)
    if first.lora is not None and (policy.folder is None or tags or (policy.add_word_tokens and taught_first)):
        raise SettingError(
            f"{setting} trains adapters alone, and the policy's new tokens would keep untrained vectors; set "
            f"{setting}=null, or train a policy.folder without policy.add_tag_tokens and policy.add_word_tokens"
        )
    if policy.folder is None or taught_first or not ((folder := model_path(policy.folder)) / CARD).is_file():
        return
    card = AgentCard.read(folder)
    spelt_tags = set(tags) & set(recipe.load_protocol(card.protocol, run_files=False).grammar.special_tokens)
    if spelt_tags:
        raise SettingError(
            f"policy.add_tag_tokens=true makes new tokens of tags that {policy.folder} has learnt to spell "
            f"({', '.join(sorted(spelt_tags))}), and no warm start would train them; set policy.add_tag_tokens=false"
        )


def _check_stage(recipe: AgentRecipe) -> None:
    """Refuse a reward with unknown parts, or with parts that need a grader the recipe lacks."""
    check_graders(recipe.graders, make_reward(recipe.reward), recipe.data.world is not None)
    if recipe.select.naive_rag == "wrong" and recipe.graders.generator is None:
        raise SettingError("select.naive_rag=wrong asks a frozen generator; name one with graders.generator.model")


def _check_data(data: DataSettings) -> None:
    """Refuse unknown retrievers and splits, and wrong settings of a retriever."""
    mistakes = ErrorList()
    if data.retriever not in retriever_names():
        mistakes.add(UnknownName("retriever", data.retriever, retriever_names()))
    elif data.index is None:
        mistakes.collect(check_retriever, data.retriever, data.retriever_settings)
    for setting in SPLITS if data.world is not None else ():  # `paths_of` names the files of a folder
        if (split := getattr(data, setting)) not in SPLITS:
            hint = f"{nearest(split, SPLITS)} They have: {', '.join(SPLITS)}"
            mistakes.add(f"data.{setting}={split} is not a split of these data{hint}")
    if data.index is not None and is_function(data.index):
        mistakes.collect(function_module, "retriever", data.index)
    if isinstance(searched := data.searched, dict):
        mistakes.collect(OpenContext().check, searched, "data.view")
    training = data.training_over(data.searched or "the run's own index", data.folder or "the run's own")
    if training is not None:
        mistakes.collect(OpenContext().check, training, "data.training_retriever")
    mistakes.raise_all()


def how_to_make(model: Path) -> str:
    """Say which command makes the model that laptop recipes name; empty for any other."""
    return f", or make it: coseek train generator --out {model.parent}" if model == LAPTOP_READER else ""


def _check_path(entry: RecipePath) -> None:
    """Refuse a missing path, or a folder of another kind."""
    if not entry.path.exists() and entry.is_model:
        raise DataError(missing("", entry.path, entry.setting, entry.shipped) + how_to_make(entry.path))
    if problem := problem_of(entry):
        makeable = entry.setting in ("data.folder", "data.index")
        hint = " (docs/reference/recipes.md says what makes it)" if makeable else ""
        raise DataError(f"{problem}, which the recipe names as {entry.setting}; check the path{hint}")


def problem_of(entry: RecipePath) -> str:
    """The problem with a path; empty if there is none."""
    path, held = entry.path, HELD.get(entry.kind, [])
    if not path.exists():
        return missing("", path, known=entry.shipped) if entry.is_model else f"there is no {path}"
    if entry.kind in ("model", "tokenizer") and (problem := of_another_kind(path)):
        return problem
    lacking = [item for item in held if not any(any(path.glob(pattern)) for pattern in item.split("|"))]
    names = " and no ".join(item.partition("|")[0] for item in lacking)
    return f"{path} holds no {names}" if path.is_dir() and lacking else ""


def taught_protocols(recipe: AgentRecipe) -> list[Protocol]:
    """The agent's protocol, then the others of its warm start. Refuses protocols that share a prompt."""
    also = recipe.warm_start.also if recipe.warm_start else {}
    mistakes = ErrorList()
    protocols = [mistakes.collect(recipe.load_protocol, name, run_files=False) for name in (recipe.protocol, *also)]
    mistakes.raise_all()
    own, *others = (protocol for protocol in protocols if protocol is not None)
    for other in others:
        if other.template.file.prompt == own.template.file.prompt:
            raise SettingError(
                f"'{other.name}' in warm_start.also has the prompt of '{own.name}' in '{recipe.prompt_template}', "
                "and a policy could not tell them apart; leave it out, or give it a prompt of its own"
            )
    return [own, *others]


def check_retriever_recipe(recipe: RetrieverRecipe) -> None:
    """Refuse trackers, an encoder, labels, a data set or a corpus that cannot be used."""
    mistakes = ErrorList()
    for name in recipe.track:
        mistakes.collect(find_tracker, name)
    if recipe.data is not None:
        data = recipe.data
        mistakes.collect(check_data_folder, data.folder, "data.folder", data.train)
        for split, usual_split in ((data.dev, "dev"), (data.test, "test")):
            if not mistakes.errors:
                mistakes.collect(check_data_folder, data.folder, "data.folder", split, usual_split)
        for name in data.questions:
            if not Path(name).exists():
                mistakes.add(DataError(f"there is no {name}, which data.questions names; check the path"))
    if recipe.encoder is not None:
        mistakes.collect(check_encoder, recipe.encoder, recipe.kind == "reranker")
    for folder in recipe.labels:
        mistakes.collect(LabelFolder, Path(folder))
    if (corpus := recipe.held_out.corpus) is not None and not Path(corpus).exists():
        mistakes.add(DataError(f"there is no {corpus}, which held_out.corpus names; check the path"))
    mistakes.raise_all()


def check_encoder(name: str, reranks: bool = False) -> None:
    """Refuse a folder that is not an encoder, or whose card contradicts its files. A reranker may start from a
    cross-encoder."""
    folder = encoder_folder(name)
    if not (reranks and is_cross_encoder(folder)):
        EncoderCard.of(folder)


def check_encoder_libraries() -> None:
    """Raise `MissingExtra` with the line that installs missing libraries, before anything is trained."""
    for library, extra in (("sentence_transformers", "dense"), ("datasets", "encoder"), ("accelerate", "encoder")):
        require_library(library, "training a retriever", extra)


def paths_of(recipe: AgentRecipe) -> Iterator[RecipePath]:
    """Every local path that a recipe names, without URLs."""
    data, engine = recipe.data, recipe.data.training_retriever or {}
    encoder = data.retriever_settings.get("encoder")
    if data.index or (isinstance(encoder, str) and is_shipped(encoder)):
        encoder = None
    policy, warm = recipe.policy, recipe.warm_start
    reads_corpus = data.index is None or policy.folder is None
    reads_corpus |= warm is not None and (warm.demonstrator != "runs" or policy.add_word_tokens > 0)
    settings: list[tuple[str, object, Kind]] = [
        ("data.folder", data.folder, "corpus" if reads_corpus else "questions"),
        ("data.index", data.index, "index"),
        ("data.training_retriever.over", engine.get("over"), "index"),
        ("data.training_retriever.model", engine.get("model"), "model"),
        ("data.training_retriever.questions", engine.get("questions"), "data"),
        ("data.retriever_settings.encoder", encoder, "encoder"),
        ("table.select.ids", recipe.table.select.ids, "ids"),
        *((f"{name}.ids", choice.ids, "ids") for name, choice in select_settings(recipe).items()),
        ("policy.folder", policy.folder, "model"),
        ("table.baseline_model", recipe.table.baseline_model if recipe.table.baselines else None, "model"),
    ]
    settings += [("table.answer_with", name, "model") for name in recipe.table.answer_with]
    if (generator := recipe.graders.generator) is not None:
        settings.append(("graders.generator.model", generator.model, "model"))
        settings.append(("graders.generator.counted_by", generator.counted_by, "tokenizer"))
    if (judge := recipe.graders.judge) is not None and judge.model != ORACLE:
        settings.append(("graders.judge.model", judge.model, "world" if is_world(Path(judge.model)) else "model"))
    for setting, name, kind in settings:
        if isinstance(name, str) and not (is_url(name) or is_function(name)):
            path = model_path(name) if kind in ("model", "tokenizer") else Path(name).expanduser()
            yield RecipePath(setting, path, kind)
    for run in warm.runs if warm else ():
        yield RecipePath("warm_start.runs", Path(run), "run")
    if data.folder is not None and (folder := Path(data.folder)).is_dir():
        if data.synthesis is not None and not (folder / f"questions.{data.train}.jsonl").exists():
            return  # they are made
        taught_there = warm is not None and warm.worlds == 0
        splits = [("data.train", data.train)] if taught_there or recipe.learn != "demonstrations" else []
        measured_splits = [("data.dev", data.dev), ("data.test", data.test)]  # `missing_splits` sees to those not there
        splits += [(name, split) for name, split in measured_splits if (folder / f"questions.{split}.jsonl").exists()]
        for setting, split in splits:
            yield RecipePath(setting, folder / f"questions.{split}.jsonl", "data")
