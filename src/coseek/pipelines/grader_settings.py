"""Graders of a training run: the generator, the judge and the naive-RAG baseline that rewards may need.

Imports torch only when a model folder is opened.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.settings import Settings, make_settings
from coseek.data.question import Question
from coseek.graders.factory import open_generator, open_judge, oracle
from coseek.graders.generator import Generator, GeneratorSettings
from coseek.graders.grading import Tell, no_progress
from coseek.graders.judge import Judge, JudgeSettings
from coseek.graders.rag_baseline import RagBaselines, make_baselines
from coseek.graders.scoring import EpisodeScorer, check_needs
from coseek.hardware.placement import Placement
from coseek.models.text_model import TextModelSettings
from coseek.retrieval.retriever import Retriever
from coseek.rewards.grades import Accuracy
from coseek.rewards.reward import RewardFunction

ORACLE = "oracle"
"""As a judge's model: the oracle of the laptop world that the run is trained in."""
CACHE = "frozen.sqlite"
"""Cache of the graders' and scorers' texts in a training's folder."""


class BaselineSettings(Settings):
    """Naive RAG, the baseline of gains."""

    folder: str | None = None
    """Folder of `baselines.jsonl`; the run's folder when not set."""
    passages: int = Field(default=3, ge=1)
    """Passages of the one search (004: 3, as many as the agent's searches find)."""


class GraderSettings(Placement):
    """Models that rewards ask during training and that are not trained. `auto` is the precision of the narrowest."""

    generator: GeneratorSettings | None = None
    """Answers from the passages that a run serves."""
    judge: JudgeSettings | None = None
    """Grades answers; `model: oracle` is the oracle of the run's laptop world."""
    baseline: BaselineSettings = BaselineSettings()
    """Computed before training where a reward needs it."""
    max_rows: int = Field(default=64, ge=1)
    """Batch size of local models; results do not depend on it."""


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
        """Naive RAG's baselines of these questions, graded by `accuracy`; missing ones are computed and stored."""
        if self.generator is None:
            raise SettingError("a baseline needs a frozen generator; name one with graders.generator.model")
        settings = self.settings.baseline
        folder = Path(settings.folder) if settings.folder is not None else self.folder
        passages = settings.passages
        return make_baselines(folder, questions, retriever, self.generator, passages, self.judge, accuracy, tell)

    def scoring(self, reward: RewardFunction, baselines: RagBaselines | None = None) -> EpisodeScorer:
        """A scorer of episodes that asks these graders."""
        return EpisodeScorer(reward, self.generator, self.judge, baselines)


def check_graders(settings: GraderSettings, reward: RewardFunction, world: bool) -> None:
    """Refuse a reward that needs a grader the settings do not name; `world`: the run is in a laptop world."""
    there = {"component", "baseline"} if settings.generator is not None else set()
    if settings.judge is not None:
        there.add("judge")
        if settings.judge.model == ORACLE and not world:
            raise SettingError(
                "the oracle judges in laptop worlds only; name a model folder or a URL with graders.judge.model"
            )
    check_needs(reward, there)


def open_graders(settings: GraderSettings, folder: Path, world: Path | None = None) -> Graders:
    """Open the graders. `world` is the laptop world's folder for `judge.model: oracle`."""
    writing = make_settings(TextModelSettings, {**settings.values(), "max_rows": settings.max_rows})
    cache = folder / CACHE
    generator = open_generator(settings.generator, cache, writing) if settings.generator is not None else None
    if settings.judge is None or settings.judge.model != ORACLE:
        judge = open_judge(settings.judge, cache, writing) if settings.judge is not None else None
        return Graders(settings, folder, generator, judge)
    if world is None:
        raise SettingError("the oracle judges in laptop worlds only; name a model folder or a URL")
    return Graders(settings, folder, generator, oracle().judge(str(world)))
