"""Library: the commands as functions for programs. `coseek` exports them.

Each function checks its arguments and calls the same code as its command; nothing is computed here. Paths are `str` or
`Path`, with `~` expanded. Where several texts are accepted, a bare string is one text. A mistake in an argument raises
a `UserError` (`SettingError`, `DataError`, `UnknownName` …) with one sentence and the way out; a missing optional
library raises `MissingExtra`.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias, cast

from coseek.agents import factory
from coseek.agents.drivers import Agent, rollout as _rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol as _load_protocol
from coseek.agents.run_questions import row_seed
from coseek.core.cluster import cluster_at
from coseek.core.errors import SettingError, in_python_words, missing_extras
from coseek.core.files import JsonObject, as_path
from coseek.core.progress import NoProgress, Progress
from coseek.core.settings import Overrides, apply_overrides, dump_settings, make_settings, typed_overrides
from coseek.core.strict_json import fault_in
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.maker import world_maker
from coseek.data.question import Question, QuestionSplit
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import open_generator, open_judge
from coseek.graders.generator import GeneratorSettings
from coseek.graders.judge import JudgeSettings
from coseek.graders.scoring import TrajectoryScorer
from coseek.hardware.device import AUTO
from coseek.hardware.placement import PrecisionSetting
from coseek.labels.labelling import LabelSummary
from coseek.measure.rankings import metrics_within
from coseek.measure.score import Scores
from coseek.measure.searched import RetrievalMeasure, default_metrics, search_questions
from coseek.models.text_model import TextModelSettings
from coseek.pipelines.agent_run import RunSettings, check_gold, check_run, questions_at, run_agent as _run_agent
from coseek.pipelines.labelling import label_runs, label_settings
from coseek.pipelines.trainers import AgentTrainer, RetrieverTrainer
from coseek.retrieval.factory import SearchFunction, Source, as_retriever, open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import (
    Reward,
    RewardFault,
    RewardFunction,
    RewardLike,
    make_reward as _make_reward,
    reward_spec,
)

PathLike: TypeAlias = str | Path


@in_python_words
def make_world(
    folder: PathLike, size: str = "small", seed: int = 0, *, name: str | None = None, **settings: object
) -> Dataset:
    """Write a laptop world, a generated data set, into a folder, and open it (`coseek world make`).

    `size` is `tiny`, `compact`, `small` or `large`; `settings` are the fields of `WorldSettings`, such as `train=500`.
    `name` is a reference world (`world-1`), in place of all these. An existing world is replaced; a folder with
    anything else raises `DataError`.
    """
    path = as_path(folder, "the folder of a world")
    maker = world_maker()
    maker.make(maker.chosen({"size": size, "seed": seed, **settings}, name)).save(path)
    return Dataset(path)


@in_python_words
def load_questions(source: PathLike, split: str | None = None) -> QuestionSplit:
    """Load the questions of a file, or of a split of a data-set folder. `split` is optional if there is only one."""
    path = as_path(source, "a questions file or data-set folder")
    return QuestionSplit.of(questions_at(path, split), path if path.is_dir() else None, split)


@in_python_words
def load_protocol(name: PathLike, prompt_template: PathLike = "default") -> Protocol:
    """Open a protocol by name (`search-r1`, `qagent`, `s3` …) or by the path of its YAML file.

    Raises `UnknownName` with the nearest name.
    """
    return _load_protocol(_name(name, "a protocol"), _name(prompt_template, "a prompt template"))


@in_python_words
def open_agent(
    name: PathLike,
    *,
    protocol: PathLike | None = None,
    prompt_template: PathLike | None = None,
    tokenizer: PathLike | None = None,
    temperature: float | None = None,
    device: str | None = None,
    precision: PrecisionSetting | None = None,
) -> Agent:
    """Open an agent, as `--agent` does: a model folder, a server's URL, a YAML file, or a scripted agent such as
    `rules`.

    Defaults are the agent's own settings, else those of `AgentSettings`: temperature 0, an accelerator if there is one,
    and the fastest precision there. A model folder needs the extra `train`, a server `remote`.
    """
    settings = _agent_settings(name, protocol, prompt_template, tokenizer, device, temperature, precision)
    with missing_extras(f"the agent {settings.name}"):
        return factory.open_agent(factory.settled_for(settings, settings))


@in_python_words
def rollout(
    agent: Agent | PathLike,
    questions: str | Question | Sequence[str | Question],
    retriever: Retriever | Source | SearchFunction,
    *,
    limits: Limits | Mapping[str, object] | None = None,
    samples: int = 1,
    seed: int = 0,
    concurrency: int = 256,
    overlap: bool = False,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Run an agent over Q questions, `samples` times each, in memory. Returns Q · `samples` trajectories, question by
    question.

    A bare text is one question. A retriever may be a function of (query, k) that returns passages or texts. `limits`
    are complete (`Limits`), or overrides such as `{"max_turns": 6}` of the defaults for the agent and its protocol. The
    seed of a trajectory follows from `seed`, the question's id and the sample's number, as in a run folder.
    `concurrency`, `overlap` and `on_done` are those of `coseek.agents.drivers.rollout`. A failed search or model call
    ends only its own trajectory, with `retriever_error` or `model_error`. Questions with gold passages outside the
    retriever's corpus raise `DataError`.
    """
    who = agent if isinstance(agent, Agent) else open_agent(agent)
    index = _to_retriever(retriever)
    question_list = _to_questions(questions)
    if samples < 1:
        raise SettingError(f"samples counts the trajectories of a question and must be at least 1, not {samples}")
    check_gold(question_list, index, index.name)
    budgets = make_settings(Limits, _limits_over(factory.limits_of(who), limits))
    episodes = [question for question in question_list for _ in range(samples)]
    seeds = [row_seed(seed, question.id, sample) for question in question_list for sample in range(samples)]
    return _rollout(who, index, episodes, seeds, budgets, concurrency=concurrency, overlap=overlap, on_done=on_done)


@in_python_words
def run_agent(
    questions: PathLike,
    agent: PathLike,
    retriever: PathLike,
    out: PathLike,
    *,
    split: str | None = None,
    count: int | None = None,
    samples: int = 1,
    temperature: float | None = None,
    seed: int = 0,
    protocol: PathLike | None = None,
    prompt_template: PathLike | None = None,
    tokenizer: PathLike | None = None,
    device: str | None = None,
    limits: Limits | Mapping[str, object] | None = None,
    resume: bool = False,
    cluster: str | None = None,
) -> Run:
    """Run an agent over a questions file, or a split of a data-set folder, into the run folder `out` (`coseek run`).

    Every trajectory is stored when it ends, so a killed run loses only unfinished questions; `resume=True` continues.
    `cluster` is the address of a Ray cluster whose processes answer. Agent and retriever are names, since `run.yaml`
    records them.
    """
    source = as_path(questions, "a questions file or data-set folder")
    index = _name(retriever, "the retriever of a run")
    agent_options = (protocol, prompt_template, tokenizer, device, temperature, None)
    agent_settings, default_limits = check_run(source, split, index, lambda: _agent_settings(agent, *agent_options))
    parts = {"retriever": index, "agent": dump_settings(agent_settings), "limits": _limits_over(default_limits, limits)}
    tree = {**parts, "questions": str(source), "split": split, "count": count, "samples": samples, "seed": seed}
    settings = make_settings(RunSettings, tree)
    with missing_extras(f"the agent {agent_settings.name}"), cluster_at(cluster) as nodes:
        return _run_agent(settings, as_path(out, "a run folder"), resume, cluster=nodes)[0]


@in_python_words
def make_reward(spec: RewardLike) -> RewardFunction:
    """Compose a reward: a part or preset by name, a `.py` file, a function of a trajectory, or a mapping of such parts
    to weights or settings, in which `preset` → name or YAML file.

    An example is `{"exact_match": 1.0, "searches": -0.02}`; docs/reference/rewards.md lists the parts. Called with a
    finished trajectory, the result returns a `Reward`, or `None` if a fault ended the trajectory. Raises `UnknownName`
    with the nearest name.
    """
    return _make_reward(reward_spec(spec))


@in_python_words
def score(
    trajectories: Iterable[Trajectory],
    reward: RewardFunction | RewardLike,
    *,
    generator: PathLike | Mapping[str, object] | None = None,
    judge: PathLike | Mapping[str, object] | None = None,
    device: str = AUTO,
) -> list[Reward | RewardFault]:
    """Compute the reward of each trajectory, in order; a `RewardFault`, never 0, if a part of the system failed.

    `generator` and `judge` are for rewards that need a frozen generator or a judge: a model folder, a URL or a YAML
    file, a laptop world's folder (its oracle judges), or settings that include `model`. Raises `SettingError` if one is
    missing, and `DataError` for a question that lacks what the reward compares with.
    """
    trajectory_list = list(trajectories) if isinstance(trajectories, Iterable) else [trajectories]
    for item in trajectory_list:
        if not isinstance(item, Trajectory):
            raise SettingError(f"a reward is for trajectories, not {item!r}; a run's are Run(folder).trajectories()")
    reward_function = reward if isinstance(reward, RewardFunction) else make_reward(reward)
    with missing_extras("a model that rewards ask"):
        placement = TextModelSettings(device=device)
        opened_generator, opened_judge = None, None
        if generator is not None:
            opened_generator = open_generator(make_settings(GeneratorSettings, _model_of(generator)), writing=placement)
        if judge is not None:
            opened_judge = open_judge(make_settings(JudgeSettings, _model_of(judge)), writing=placement)
        return TrajectoryScorer(reward_function, opened_generator, opened_judge)(trajectory_list)


@in_python_words
def label(
    runs: PathLike | Sequence[PathLike],
    method: PathLike,
    out: PathLike,
    settings: Overrides = (),
    *,
    retriever: PathLike | None = None,
    agent: PathLike | None = None,
    temperature: float = 0.0,
    scorer: PathLike | None = None,
    likelihood: PathLike | None = None,
    device: str | None = None,
    count: int | None = None,
    resume: bool = False,
    cache: PathLike | None = None,
    cluster: str | None = None,
) -> LabelSummary:
    """Label every search of run folders, for training a retriever, into the label folder `out` (`coseek label`).

    `method` is `gold`, `agentic-r`, `dr-synth`, `replug` … or the path of a `.py` file. `settings` are those of the
    method, and the agent's budgets as `limits`. Retriever and agent are by default those of the runs. Turns that failed
    are counted in `left`; `resume=True` retries them. `cluster` is the address of a Ray cluster whose processes label.
    """
    folders = [str(as_path(run, "a run folder")) for run in _as_list(runs)]
    options: JsonObject = {"method": _name(method, "a method of labelling"), "count": count}
    options |= {"scorer": _named(scorer, "a scorer"), "likelihood": _named(likelihood, "a model of likelihood")}
    agent_options = (_named(retriever, "a retriever of labels"), _named(agent, "an agent"), temperature, device)
    chosen, of_method = label_settings(folders, apply_overrides({}, typed_overrides(settings)), options, *agent_options)
    cache_path = None if cache is None else as_path(cache, "a cache file")
    with missing_extras(f"the method {method}"), cluster_at(cluster) as nodes:
        return label_runs(chosen, of_method, as_path(out, "a label folder"), resume, cache_path, cluster=nodes)


@in_python_words
def train_agent(
    recipe: PathLike,
    overrides: Overrides = (),
    *,
    out: PathLike,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train an agent by a recipe, measure it, and write table and report (`coseek train agent`).

    `recipe` is a shipped recipe or a YAML file. Returns the folder of the trained policy, for `open_agent`; `out` also
    contains `table.json`, `report.html` and the metrics. `resume=True` continues a stopped training to the same result.
    All mistakes of a recipe are raised as one error, before torch is imported. Needs the extra `train`.
    """
    trainer = AgentTrainer(recipe=_name(recipe, "a recipe"), overrides=typed_overrides(overrides))
    return trainer.run(as_path(out, "a training folder"), resume, progress or NoProgress()).policy


@in_python_words
def train_retriever(
    recipe: PathLike,
    overrides: Overrides = (),
    *,
    out: PathLike,
    labels: PathLike | Sequence[PathLike] = (),
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train the encoder of a retriever, and measure it on held-out turns (`coseek train retriever`).

    `labels` are label folders in place of the recipe's. Returns the encoder's folder, for
    `build_index(data, "dense", out, {"encoder": …})`. Needs the extra `encoder`.
    """
    folders = [str(as_path(folder, "a label folder")) for folder in _as_list(labels)]
    trainer = RetrieverTrainer(recipe=_name(recipe, "a recipe"), labels=folders, overrides=typed_overrides(overrides))
    return trainer.run(as_path(out, "a training folder"), resume, progress or NoProgress()).encoder


@in_python_words
def import_documents(
    sources: PathLike | Sequence[PathLike], out: PathLike, settings: Mapping[str, object] | None = None
) -> Dataset:
    """Read files or folders of documents (text, Markdown, HTML, PDF, DOCX, …) and write a data set (`coseek data import
    documents`).

    `settings` are those of the import, such as `{"size": 200}`. `source.json` in `out` lists files that could not be
    read, with reasons. Raises `DataError` if there is nothing to read. Most formats need the extra `documents`.
    """
    paths = [as_path(source, "a document or folder") for source in _as_list(sources)]
    folder = as_path(out, "a data-set folder")
    with missing_extras("importing these documents"):
        import_data("documents", paths, folder, settings=settings)
    return Dataset(folder)


@in_python_words
def ask(
    question: str | Question,
    retriever: Retriever | Source | SearchFunction,
    agent: Agent | PathLike = "extract",
    *,
    limits: Limits | Mapping[str, object] | None = None,
    seed: int = 0,
) -> Trajectory:
    """Ask one question (`coseek ask`). The trajectory has the answer in `.answer`, and queries and hits in `.searches`.

    `agent` is as for `open_agent`. `extract` needs no model, and quotes the sentence that fits best.
    """
    (trajectory,) = rollout(agent, question, retriever, limits=limits, seed=seed)
    return trajectory


@in_python_words
def measure_retrievers(
    questions: PathLike | Sequence[Question],
    retrievers: Retriever | Source | Mapping[str, Retriever | Source],
    *,
    split: str | None = None,
    metrics: str | Sequence[str] | None = None,
    depth: int = 100,
    seed: int = 0,
) -> Scores:
    """Measure what retrievers find if the question itself is the query (`coseek measure`).

    `retrievers` is one, or name → retriever; later ones are compared with the first. The result has means with
    bootstrap intervals, `.of(name).metrics["recall@5"]`, and `.comparisons`. Failed searches are counted and excluded.
    `metrics` are by default recall, MRR and nDCG, or answer hits if no question has gold passages.
    """
    sources = retrievers if isinstance(retrievers, Mapping) and "retriever" not in retrievers else {"": retrievers}
    opened_retrievers = {name: _to_retriever(cast("Retriever | Source", source)) for name, source in sources.items()}
    if isinstance(questions, str | Path):
        question_list = questions_at(as_path(questions, "questions"), split)
    else:
        question_list = _to_questions(questions)
    for name, index in opened_retrievers.items():
        check_gold(question_list, index, name or index.name, questions if isinstance(questions, str | Path) else None)
    chosen = [metrics] if isinstance(metrics, str) else metrics or default_metrics(question_list)
    measuring = RetrievalMeasure(metrics_within(depth, chosen))
    runs = [
        measuring.measure(name or index.name, chain.from_iterable(search_questions(index, question_list, depth)))
        for name, index in opened_retrievers.items()
    ]
    return measuring.compare(runs, question_list, seed=seed)


def _agent_settings(
    name: PathLike,
    protocol: PathLike | None,
    prompt_template: PathLike | None,
    tokenizer: PathLike | None,
    device: str | None,
    temperature: float | None,
    precision: PrecisionSetting | None,
) -> factory.AgentSettings:
    """The settings of `settings_for`, with temperature and precision applied."""
    names = (_named(protocol, "a protocol"), _named(prompt_template, "a prompt template"))
    settings = factory.settings_for(_name(name, "an agent"), *names, _named(tokenizer, "a tokenizer"), device)
    options = {"temperature": temperature, "precision": precision}
    changes = {key: value for key, value in options.items() if value is not None}
    return make_settings(factory.AgentSettings, {**dump_settings(settings), **changes}) if changes else settings


def _limits_over(defaults: Limits, limits: Limits | Mapping[str, object] | None) -> dict[str, object]:
    """An agent's default limits, with the given ones applied."""
    if limits is not None and not isinstance(limits, Limits | Mapping):
        raise SettingError(f"limits are a mapping such as {{'max_turns': 6}} or Limits(…), not {limits!r}")
    return {**dump_settings(defaults), **(dump_settings(limits) if isinstance(limits, Limits) else limits or {})}


def _to_retriever(retriever: Retriever | Source | SearchFunction) -> Retriever:
    if isinstance(retriever, str | Path | Mapping):
        return open_retriever(retriever)
    return as_retriever(retriever)


def _to_questions(questions: str | Question | Sequence[str | Question]) -> list[Question]:
    """Convert to questions. Texts get the ids `question-1`, `question-2` … by position."""
    items = [questions] if isinstance(questions, str | Question) else questions
    if not isinstance(items, Sequence):
        raise SettingError(
            f"questions are one text, one Question or a list of them, not {questions!r}; a data set's are "
            "Dataset(folder).questions(split)"
        )
    by_id: dict[str, Question] = {}
    for number, item in enumerate(items, start=1):
        if isinstance(item, str) and not item.strip():
            raise SettingError(f"question {number} is empty")
        question = Question(f"question-{number}", item) if isinstance(item, str) else item
        if not isinstance(question, Question):
            raise SettingError(f"a question is a text or a Question, not {question!r}")
        if question.id in by_id:
            raise SettingError(f"two questions have the id {question.id!r}; ids must be unique; samples=2 asks twice")
        if problem := fault_in(question.to_json()):
            raise SettingError(f"the question {question.id!r} cannot be asked: {problem}")
        by_id[question.id] = question
    return list(by_id.values())


def _model_of(model: PathLike | Mapping[str, object]) -> Mapping[str, object]:
    return model if isinstance(model, Mapping) else {"model": _name(model, "a model")}


def _as_list(paths: PathLike | Sequence[PathLike]) -> Sequence[PathLike]:
    return [paths] if isinstance(paths, str | os.PathLike) else paths


def _name(name: object, noun: str) -> str:
    """Convert a name, a URL or a path to a text."""
    return os.path.expanduser(name) if isinstance(name, str) and name else str(as_path(name, noun))


def _named(name: object, noun: str) -> str | None:
    return None if name is None else _name(name, noun)
