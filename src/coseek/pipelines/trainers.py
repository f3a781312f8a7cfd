"""Trainers: the training of an agent and of a retriever, as objects. `coseek train agent` and `retriever` use them.

    trainer = AgentTrainer("models/Qwen2.5-3B", retriever="indexes/wiki", questions="data/hotpotqa", reward="f1")
    trainer.train("runs/mine")

Settings beyond the parameters are those of a recipe (`rl={"group_size": 5}`), over a recipe by name or over plain ones.
Wherever a file of the user's is accepted, a Python function is, too; settings name it `python:NAME`. Torch is imported
when training begins.
"""

import inspect
import shutil
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from coseek.agents import factory
from coseek.agents.tool import ToolLike, tool_name
from coseek.core.errors import SettingError, closest, in_python_words, missing_extras
from coseek.core.files import Json, JsonObject, as_path, check_output_folder, is_failed_start
from coseek.core.plugins import CannotResume, OwnFunction, is_function, own_function, plugin_digests, plugin_name
from coseek.core.progress import NoProgress, PrintedProgress, Progress
from coseek.core.settings import Settings, apply_overrides, changed_settings, dump_settings, typed_overrides
from coseek.data.dataset import QUESTIONS
from coseek.data.question import Question, QuestionSplit, load_questions, save_questions
from coseek.pipelines.agent_check import (
    SPLITS,
    check_encoder_libraries,
    check_retriever_recipe,
    checked_recipe,
)
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.retrieval.factory import SearchFunction, retriever_name
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import view_name
from coseek.rewards.reward import RewardLike, reward_spec
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe
from coseek.training.rl.algorithm import algorithm_name
from coseek.training.rl.policy_loss import policy_loss_name

if TYPE_CHECKING:
    from torch import Tensor

    from coseek.measure.table import Table
    from coseek.pipelines.agent import AgentTraining
    from coseek.pipelines.encoder import RetrieverTraining
    from coseek.training.rl.algorithm import StepRewards
    from coseek.training.rl.policy_loss import LossBatch

RECORD = "recipe.yaml"
T = TypeVar("T")
PathLike: TypeAlias = str | Path
QuestionsLike: TypeAlias = PathLike | Sequence[Question] | Mapping[str, Sequence[Question]]
"""A data-set folder, questions of the split `train`, or split → questions."""


@dataclass(frozen=True)
class TrainedAgent:
    """The result of an agent's training."""

    folder: Path
    policy: Path
    """The model folder of the trained policy, for `open_agent`."""
    table: "Table | None"
    """The agent before and after, and its baselines; `None` in all processes but the first."""

    def __str__(self) -> str:
        return f"{self.policy}\n\n{self.table.markdown() if self.table else ''}".rstrip()

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self.policy))}</p>{table_html(self.table)}"


@dataclass(frozen=True)
class TrainedRetriever:
    """The result of a retriever's training."""

    folder: Path
    encoder: Path
    """The encoder's folder, for `build_index(data, "dense", out, {"encoder": …})`."""
    table: "Table | None"
    """Results of the encoder on held-out turns; `None` if nothing is held out."""

    def __str__(self) -> str:
        return f"{self.encoder}\n\n{self.table.markdown() if self.table else ''}".rstrip()

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self.encoder))}</p>{table_html(self.table)}"


class _Trainer(ABC, Generic[T]):
    """Base of both trainers: their representations, and `train`."""

    recipe: Settings

    def __repr__(self) -> str:
        changes = flat(changed_settings(self.recipe))
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in changes)})"

    def _repr_html_(self) -> str:
        """The changed settings as a table for a notebook."""
        rows = (
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(str(value))}</td></tr>"
            for name, value in flat(changed_settings(self.recipe))
        )
        title = f"{type(self).__name__}; all other settings have their defaults"
        return f"<table><tr><th colspan=2>{title}</th></tr>{''.join(rows)}</table>"

    def train(self, out: PathLike, *, resume: bool = False, progress: Progress | None = None) -> T:
        """Train into the folder `out`, then measure (`coseek train agent`, `coseek train retriever`).

        `resume=True` continues a stopped training, to the same result.
        """
        run = in_python_words(self.run)
        return run(as_path(out, "a training folder"), resume=resume, progress=progress or PrintedProgress())

    @abstractmethod
    def run(self, out: Path, resume: bool, progress: Progress) -> T:
        """Like `train`, but errors name the options of the command line."""


class AgentTrainer(_Trainer[TrainedAgent]):
    """Trains an agent by reinforcement learning, and measures it before and after.

    `model` is a model folder; it may be left out if a `recipe` names one. By default `protocol` and budgets suit the
    model. `questions` are the training questions: a data-set folder (with its splits `dev` and `test`), the result of
    `load_questions`, or a list, of which a tenth is set aside as each split to measure by.

    The following are a name, a file or a function: `retriever` (an index folder, a URL, or a function of (query, k)
    that returns passages), `view` (maps a `Query` to the text that the retriever gets), `tools` (more tools for the
    protocol `tools`), `reward` (of a finished trajectory; also a list, or a mapping of names to weights), `algorithm`
    (maps `StepRewards` to advantages) and `policy_loss` (maps a `LossBatch` to losses). All other settings are a
    recipe's: `rl={"group_size": 5}`, `seed=1`, `**{"rl.policy.optimizer.lr": 1e-6}`. A setting that contradicts a
    parameter is refused.

    Raises `SettingError`, `UnknownName` or `DataError` with all mistakes at once, before torch is imported.
    """

    recipe: AgentRecipe
    training: "AgentTraining | None" = None
    """The current or finished training."""

    def __init__(
        self,
        model: PathLike | None = None,
        *,
        recipe: PathLike | None = None,
        protocol: PathLike | None = None,
        retriever: PathLike | Retriever | SearchFunction | None = None,
        view: PathLike | Callable[[Query], str] | None = None,
        tools: Sequence[ToolLike] = (),
        reward: RewardLike | None = None,
        questions: QuestionsLike | None = None,
        algorithm: "PathLike | Callable[[StepRewards], Tensor] | None" = None,
        policy_loss: "PathLike | Callable[[LossBatch], Tensor] | None" = None,
        steps: int | None = None,
        overrides: Sequence[str] = (),
        **settings: object,
    ) -> None:
        _check_names(AgentTrainer, AgentRecipe, settings)
        self._question_source = GivenQuestions.of(questions)
        parameters: dict[str, object] = {
            "policy.folder": model and str(model),
            "protocol": protocol and str(protocol),
            "tools": [tool_name(tool) for tool in tools] or None,
            "data.index": None if retriever is None else retriever_name(retriever),
            "data.view": None if view is None else view_name(view),
            "reward": None if reward is None else reward_spec(reward),
            "rl.algorithm": None if algorithm is None else algorithm_name(algorithm),
            "rl.policy_loss": None if policy_loss is None else policy_loss_name(policy_loss),
            "rl.steps": steps,
        }
        defaults = {} if recipe is not None else _suitable_settings(model, protocol)
        defaults |= {} if self._question_source is None else self._question_source.settings()
        parameters["data.folder"] = defaults.pop("data.folder", None)
        words = [*typed_overrides(defaults), *_override_words(AgentRecipe, parameters, settings, overrides)]
        if recipe is None and not any(word.partition("=")[0].split(".")[0] == "data" for word in words):
            raise SettingError("there are no questions to train on; pass questions=, or a recipe that names some")
        self.recipe = checked_recipe("" if recipe is None else str(as_path(recipe, "a recipe")), words)
        self._functions = _functions_of(self.recipe)

    def run(self, out: Path, resume: bool, progress: Progress) -> TrainedAgent:
        """Like `train`, but errors name the options of the command line."""
        _check_unchanged(self._functions)
        if self._question_source is not None and self._question_source.in_memory:
            self.recipe = self._question_source.kept_in(out, self.recipe)
        with missing_extras("training an agent"):
            from coseek.pipelines.agent_results import train_and_measure  # torch

            self.training, table = train_and_measure(self.recipe, out, resume, progress)
        return TrainedAgent(out, self.training.policy_folder(self.training.compared_policies[1]), table)

    def evaluate(self, progress: Progress | None = None) -> dict[str, float]:
        """Mean reward, exact match and recall on the dev questions at temperature 0, of the trained policy, or before
        training of the initial one."""
        _check_unchanged(self._functions)
        with missing_extras("running an agent"):
            from coseek.pipelines.agent import AgentTraining  # torch

            if self.training is not None:
                return _evaluate(self.training, self.training.compared_policies[1])
            with TemporaryDirectory(prefix="coseek-evaluate-") as scratch:
                training = AgentTraining(self.recipe, Path(scratch) / "run", progress or NoProgress())
                training.begin(resume=False)
                training.prepare_data()
                training.make_policy()
                return _evaluate(training, "start")


class RetrieverTrainer(_Trainer[TrainedRetriever]):
    """Trains the encoder of a retriever on labels, and measures it on held-out turns.

    `labels` are label folders (`coseek.label`) that replace those of the `recipe`; `encoder` is the initial encoder, a
    folder or a shipped one. All other settings are a recipe's: `training={"steps": 500}`, `view="query"`.
    """

    recipe: RetrieverRecipe
    training: "RetrieverTraining | None" = None
    """The current or finished training."""

    def __init__(
        self,
        encoder: PathLike | None = None,
        *,
        recipe: PathLike | None = None,
        labels: PathLike | Sequence[PathLike] = (),
        view: PathLike | Callable[[Query], str] | None = None,
        steps: int | None = None,
        overrides: Sequence[str] = (),
        **settings: object,
    ) -> None:
        _check_names(RetrieverTrainer, RetrieverRecipe, settings)
        folders = [labels] if isinstance(labels, str | Path) else labels
        parameters: dict[str, object] = {
            "encoder": encoder and str(encoder),
            "view": None if view is None else view_name(view),
            "training.steps": steps,
        }
        words = _override_words(RetrieverRecipe, parameters, settings, overrides)
        paths = [str(as_path(folder, "a label folder")) for folder in folders]
        self.recipe = load_retriever_recipe("" if recipe is None else str(as_path(recipe, "a recipe")), words, paths)
        check_retriever_recipe(self.recipe)
        self._functions = _functions_of(self.recipe)

    def run(self, out: Path, resume: bool, progress: Progress) -> TrainedRetriever:
        """Like `train`, but errors name the options of the command line."""
        _check_unchanged(self._functions)
        check_encoder_libraries()
        from coseek.pipelines.reranker import train_and_measure  # torch

        self.training, table = train_and_measure(self.recipe, out, resume, progress)
        return TrainedRetriever(out, self.training.encoder_folder, table)

    def evaluate(self) -> dict[str, float]:
        """Metrics on held-out turns (`mrr`, `recall@5` …) of the trained encoder, or before training of the initial
        one; empty if nothing is held out."""
        _check_unchanged(self._functions)
        check_encoder_libraries()
        from coseek.pipelines.reranker import training_of  # torch

        if self.training is not None:
            return self.training.held_out_metrics(self.training.encoder_folder)
        with TemporaryDirectory(prefix="coseek-evaluate-") as scratch:
            training = training_of(self.recipe)(self.recipe, Path(scratch) / "run", NoProgress())
            training.begin(resume=False)
            return training.held_out_metrics(training.start_folder)


class GivenQuestions:
    """Questions passed by a program: a data-set folder and its split, or a list, which gets a temporary folder."""

    def __init__(self, folder: Path, split: str, in_memory: bool = False) -> None:
        self.folder, self.split, self.in_memory = folder, split, in_memory
        if in_memory:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @classmethod
    def of(cls, source: QuestionsLike | None) -> "GivenQuestions | None":
        if source is None:
            return None
        if isinstance(source, str | Path):
            return cls(as_path(source, "a data-set folder"), "train")
        if isinstance(source, QuestionSplit) and source.folder is not None:
            return cls(source.folder, source.split or "train")
        splits = source if isinstance(source, Mapping) else {"train": source}
        for split in splits:
            if (close_name := closest(split, SPLITS)) not in (None, *splits):
                raise SettingError(f"the questions have a split {split!r}; did you mean {close_name!r}?")
        checked_splits = {split: _checked_questions(questions) for split, questions in splits.items()}
        scratch = Path(mkdtemp(prefix="coseek-questions-"))
        for split, questions in checked_splits.items():
            save_questions(scratch / f"questions.{split}.jsonl", questions)
        return cls(scratch, "train", in_memory=True)

    def settings(self) -> dict[str, object]:
        """The settings that replace a recipe's data."""
        return {"data.folder": str(self.folder), "data.train": self.split, "data.world": None, "data.unseen": None}

    def kept_in(self, out: Path, recipe: AgentRecipe) -> AgentRecipe:
        """Write the questions into a training folder, also over those of a start that was refused. Returns the recipe
        that reads them there. Raises `SettingError` if a training was begun with other questions, and `DataError` for a
        folder with other files."""
        check_output_folder(out, RECORD, own=(QUESTIONS,))
        target, questions = out / QUESTIONS, {path.name: load_questions(path) for path in self.folder.iterdir()}
        recorded = list(target.glob("questions.*.jsonl"))
        if not (out / RECORD).exists() or is_failed_start(out, RECORD, own=(QUESTIONS,)):
            for path in recorded:
                path.unlink()
            for name, split_questions in questions.items():
                save_questions(target / name, split_questions)
        elif {path.name: load_questions(path) for path in recorded} != questions:
            raise SettingError(f"{out} was begun with other questions; give the same ones, or choose another --out")
        return recipe.model_copy(update={"data": recipe.data.model_copy(update={"folder": str(target)})})


def _check_names(trainer: type, recipe: type[Settings], settings: Mapping[str, object]) -> None:
    """Raise `SettingError` for a misspelt parameter. Misspelt settings are reported when the recipe is made."""
    parameters = [name for name in inspect.signature(trainer).parameters if name != "settings"]
    for name in settings:
        if name.partition(".")[0] not in recipe.model_fields and (close_name := closest(name, parameters)):
            raise SettingError(f"{trainer.__name__} has no parameter {name!r}; did you mean {close_name!r}?")


def _override_words(
    recipe: type[Settings],
    parameters: Mapping[str, object],
    settings: Mapping[str, object],
    overrides: Sequence[str],
) -> list[str]:
    """The parameters that are not `None`, then the settings, as overrides. Raises `SettingError` if a setting
    contradicts a parameter."""
    parameter_words = typed_overrides({name: value for name, value in parameters.items() if value is not None})
    words = [*parameter_words, *typed_overrides(settings), *overrides]
    _check_kept(apply_overrides({}, parameter_words, recipe), apply_overrides({}, words, recipe))
    return words


def _check_kept(given: JsonObject, merged: JsonObject, prefix: str = "") -> None:
    for name, value in given.items():
        now = merged.get(name)
        if isinstance(value, dict) and isinstance(now, dict):
            _check_kept(value, now, f"{prefix}{name}.")
        elif now != value:
            raise SettingError(f"{prefix}{name} is {value!r} by a parameter and {now!r} by a setting; leave one out")


def _checked_questions(questions: Iterable[object]) -> list[Question]:
    items = list(questions)
    checked = [item for item in items if isinstance(item, Question)]
    if not checked or len(checked) < len(items):
        problem = next((repr(item) for item in items if not isinstance(item, Question)), "none")
        raise SettingError(f"questions are a data-set folder, load_questions(…) or a list of Question, not {problem}")
    return checked


def _suitable_settings(model: PathLike | None, protocol: PathLike | None) -> dict[str, object]:
    """Protocol, prompt template and budgets that suit a model, as `coseek run` chooses them."""
    if model is None:
        raise SettingError(
            "name a model folder to train, AgentTrainer('models/…', …), or a recipe, recipe='quickstart'"
        )
    agent = factory.settings_for(str(as_path(model, "a model")), None if protocol is None else str(protocol))
    settings = {name: getattr(agent, name) for name in ("protocol", "prompt_template", "chat_template")}
    return {**settings, "limits": dump_settings(factory.limits_for(agent))}


def _functions_of(recipe: Settings) -> dict[str, OwnFunction]:
    """The Python functions that a recipe names. Warns about functions with which a training cannot be resumed."""
    functions: dict[str, OwnFunction] = {}
    for name in filter(is_function, plugin_digests(dump_settings(recipe))):
        function = own_function(name)
        assert function is not None  # it has a digest
        functions[name] = function
        if function.problem:
            warnings.warn(
                f"this training cannot be resumed, since {plugin_name(name)} is not identified by its source: "
                f"{function.problem}",
                CannotResume,
                stacklevel=3,
            )
    return functions


def _check_unchanged(functions: Mapping[str, OwnFunction]) -> None:
    """Raise `SettingError` if a function was defined again after the trainer was made."""
    for name, function in functions.items():
        if own_function(name) is not function:
            raise SettingError(
                f"{plugin_name(name)} was defined again after this trainer was made; make the trainer again"
            )


def _evaluate(training: "AgentTraining", policy: str) -> dict[str, float]:
    from coseek.pipelines.table_rows import TableRow, agent_of  # torch

    recipe = training.stages[-1].recipe if training.stages else training.recipe
    agent = agent_of(training, TableRow(policy, policy, training.recipe.protocol, 0.0))
    return training.evaluate(agent, recipe, training.scoring(recipe))


def flat(tree: JsonObject, above: str = "") -> Iterable[tuple[str, Json]]:
    """Name and value of every setting in a tree, groups as `rl.steps`."""
    for name, value in tree.items():
        if isinstance(value, dict) and name not in ("reward", "limits"):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def table_html(table: "Table | None") -> str:
    """A table of results for a notebook."""
    from coseek.measure.report import table_section

    return "" if table is None else table_section("", table).html
