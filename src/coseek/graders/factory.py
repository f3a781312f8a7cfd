"""Grader factory: opens generators and judges by name (a shipped model, a folder, a URL, a YAML file, a laptop world)
and the graders of a training: generator, judge, and the naive-RAG baseline that rewards may need.

Imports torch only when a model folder is opened.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from pydantic import Field

from coseek.core.cache import TextCache
from coseek.core.cluster import Cluster, check_same, shares_of
from coseek.core.errors import SettingError
from coseek.core.plugins import find_plugin
from coseek.core.settings import Settings, make_settings
from coseek.data.question import Question
from coseek.graders.generator import Generator, GeneratorSettings, load_generator_prompt
from coseek.graders.grading import Tell, no_progress
from coseek.graders.judge import Judge, JudgeSettings, ModelJudge, is_world, load_judge_prompt
from coseek.graders.rag_baseline import RagBaselines, make_baselines
from coseek.graders.scoring import TrajectoryScorer, check_needs
from coseek.hardware.placement import Placement
from coseek.models.model_folder import model_path
from coseek.models.text_model import (
    CachedTextModel,
    Output,
    RemoteTextModel,
    TextModel,
    TextModelSettings,
    generate_each,
    open_text_model,
    texts_of,
)
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.retriever import Retriever
from coseek.rewards.grades import Accuracy
from coseek.rewards.reward import RewardFunction

if TYPE_CHECKING:
    from coseek.graders.ranker import Ranker
    from coseek.graders.relevance import RelevanceScorer

GRADERS = "coseek.lab.parts"
"""The package of graders that are found by their names."""

ORACLE = "oracle"
"""The judge's model that stands for the oracle of the laptop world in which the run is trained."""
CACHE = "frozen.sqlite"
"""Cache of the graders' and scorers' texts in a training's folder."""
NO_WORLD = "the oracle judges in laptop worlds only; name a model folder or a URL with graders.judge.model"


def open_generator(
    settings: GeneratorSettings,
    cache: Path | None = None,
    writing: TextModelSettings | None = None,
    cluster: Cluster | None = None,
) -> Generator:
    """Open a generator. Raises `SettingError` for a server that samples, since an answer must be repeatable."""
    prompt = load_generator_prompt(settings)
    tokenizer = HfTokenizer.load(model_path(settings.counted_by)) if settings.counted_by else None
    return Generator(open_frozen_model(settings.model, cache, writing, cluster), prompt, settings, tokenizer)


def open_judge(
    settings: JudgeSettings,
    cache: Path | None = None,
    writing: TextModelSettings | None = None,
    cluster: Cluster | None = None,
) -> Judge:
    """Open a judge: a model, or the oracle if the name is the folder of a laptop world."""
    if is_world(settings.model):
        return oracle().judge(settings.model)
    prompt = load_judge_prompt(settings)
    return ModelJudge(open_frozen_model(settings.model, cache, writing, cluster), prompt, settings)


class OracleModule(Protocol):
    """A plug-in that opens graders of a laptop world, which need no model, from the world's folder."""

    def judge(self, world: str) -> Judge: ...

    def relevance(self, world: str) -> "RelevanceScorer": ...

    def ranker(self, world: str) -> "Ranker": ...


def oracle() -> OracleModule:
    """The oracle, found by its name."""
    return cast(OracleModule, find_plugin("grader", GRADERS, "oracle"))


def open_frozen_model(
    name: str, cache: Path | None, writing: TextModelSettings | None = None, cluster: Cluster | None = None
) -> TextModel:
    """Open a model at temperature 0, with its outputs cached in `cache` if given. With a `cluster` its processes open
    the model."""
    model: TextModel
    if cluster is not None:
        model = ClusterTextModel(cluster, TextJob(name, writing))
    else:
        model = open_text_model(name, writing)
    if (temperature := getattr(model, "temperature", 0.0)) != 0:
        raise SettingError(
            f"{name} samples at temperature {temperature}; a generator or judge is frozen: set temperature: 0"
        )
    if isinstance(model, RemoteTextModel):  # it caches each text itself, as soon as it arrives
        return model if cache is None or model.store is not None else replace(model, store=TextCache(cache))
    return model if cache is None else CachedTextModel(model, TextCache(cache))


@dataclass(frozen=True, slots=True)
class Texts:
    """The outputs of one process."""

    identity: str
    outputs: list[Output]
    cut_prompts: int


@dataclass(frozen=True)
class TextJob:
    """Opens a model in a process of a cluster, which writes texts for (prompts, `max_tokens`)."""

    name: str
    writing: TextModelSettings | None

    def open(self) -> Callable[[tuple[Sequence[str], int]], Texts]:
        model = open_frozen_model(self.name, None, self.writing)

        def write(share: tuple[Sequence[str], int]) -> Texts:
            cuts_before = getattr(model, "cut_prompts", 0)
            outputs = generate_each(model, *share)
            return Texts(model.identity, outputs, getattr(model, "cut_prompts", 0) - cuts_before)

        return write


@dataclass
class ClusterTextModel:
    """A text model that each process of a cluster opens."""

    cluster: Cluster
    job: TextJob
    cut_prompts: int = 0

    @cached_property
    def identity(self) -> str:
        """The model's identity. Raises `UserError` if the models of the processes differ."""
        return next(texts.identity for _, texts in self.cluster.map(self.job, [((), 1)]))

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        parts = [(part, max_tokens) for part in shares_of(prompts, self.cluster)]
        outputs: list[Output] = []
        for _, texts in self.cluster.map(self.job, parts, ordered=True):
            check_same(texts.identity, self.identity, f"the model {self.job.name}")
            self.cut_prompts += texts.cut_prompts
            outputs += texts.outputs
        return texts_of(outputs)


# The graders of a training.


class BaselineSettings(Settings):
    """Naive RAG, the baseline of gains."""

    folder: str | None = None
    """Folder of `baselines.jsonl`; default: the run's folder."""
    passages: int = Field(default=3, ge=1)
    """Passages of its single search (004: 3, as many as each search of the agent)."""


class GraderSettings(Placement):
    """Frozen models that rewards use during training. `auto` is the precision of the narrowest model."""

    generator: GeneratorSettings | None = None
    """Answers from the passages that a run serves."""
    judge: JudgeSettings | None = None
    """Grades answers; `model: oracle` is the oracle of the run's laptop world."""
    baseline: BaselineSettings = BaselineSettings()
    """Computed before training if a reward needs it."""


@dataclass(frozen=True)
class Graders:
    """The opened graders of a run."""

    settings: GraderSettings
    folder: Path
    """Folder of baselines and cache."""
    generator: Generator | None = None
    judge: Judge | None = None

    def baselines(
        self, questions: Sequence[Question], retriever: Retriever, accuracy: Accuracy, tell: Tell = no_progress
    ) -> RagBaselines:
        """Naive RAG's baselines of these questions, graded by `accuracy`. Missing baselines are computed and stored."""
        if self.generator is None:
            raise SettingError("a baseline needs a frozen generator; name one with graders.generator.model")
        settings = self.settings.baseline
        folder, k = Path(settings.folder or self.folder), settings.passages
        return make_baselines(folder, questions, retriever, self.generator, k, self.judge, accuracy, tell)

    def scoring(self, reward: RewardFunction, baselines: RagBaselines | None = None) -> TrajectoryScorer:
        """A scorer of episodes that asks these graders."""
        return TrajectoryScorer(reward, self.generator, self.judge, baselines)


def check_graders(settings: GraderSettings, reward: RewardFunction, world: bool) -> None:
    """Raise `SettingError` for a reward that needs a missing grader. `world`: whether the run is in a laptop world."""
    available = {"component", "baseline"} if settings.generator is not None else set()
    if settings.judge is not None:
        available.add("judge")
        if settings.judge.model == ORACLE and not world:
            raise SettingError(NO_WORLD)
    check_needs(reward, available)


def open_graders(settings: GraderSettings, folder: Path, world: Path | None = None) -> Graders:
    """Open the graders. `world` is the laptop world's folder for `judge.model: oracle`."""
    writing = make_settings(TextModelSettings, settings.values())
    cache = folder / CACHE
    generator = open_generator(settings.generator, cache, writing) if settings.generator is not None else None
    judge: Judge | None = None
    if settings.judge is not None and settings.judge.model == ORACLE:
        if world is None:
            raise SettingError(NO_WORLD)
        judge = oracle().judge(str(world))
    elif settings.judge is not None:
        judge = open_judge(settings.judge, cache, writing)
    return Graders(settings, folder, generator, judge)
