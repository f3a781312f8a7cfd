"""Stages: the successive trainings of one agent, and the questions and runs that they choose."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.settings import dump_settings
from coseek.data.dataset import draw
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.graders.rag_baseline import RagBaselines, is_closed, unsolved_by_rag
from coseek.graders.scoring import TrajectoryScorer
from coseek.pipelines.agent_recipe import AgentRecipe, SelectSettings
from coseek.rewards.grades import Accuracy
from coseek.rewards.reward import Reward, make_reward
from coseek.training.learner.data_order import derive_seed
from coseek.training.rl.settings import RlSettings
from coseek.training.sft.settings import KeepSettings

BATCH = 256
"""Runs that are scored together."""


@dataclass(frozen=True)
class Stage:
    """One training: its recipe, and the policies it starts from and produces."""

    name: str
    """Empty for a recipe without stages."""
    recipe: AgentRecipe
    """The recipe with the stage's own settings."""
    start_policy: str
    """Name of the policy it starts from."""
    trained_policy: str
    """Name of the policy it produces."""
    folder: Path
    """Its metrics and checkpoints."""

    def seed(self, *parts: int | str) -> int:
        """A seed of this stage; stages share no randomness."""
        return derive_seed(self.recipe.seed, *parts, *([self.name] if self.name else []))

    @property
    def settings(self) -> RlSettings:
        """The settings of its reinforcement learning, with a derived seed."""
        return self.recipe.rl.model_copy(update={"seed": self.seed(self.recipe.rl.seed, "rl")})

    def rollout_settings(self, tokenizer: Path, step: int) -> JsonObject:
        """The settings in the `run.yaml` of a step's kept rollouts."""
        return rollout_record(self.recipe, self.trained_policy, tokenizer, step)


def rollout_record(recipe: AgentRecipe, policy: str, tokenizer: Path, step: int) -> JsonObject:
    """The settings in the `run.yaml` of rollouts of `policy` in a step."""
    name = f"{policy} before the updates of step {step}"  # these weights are not stored
    agent, tree = recipe.agent_record(name, recipe.rl.temperature, tokenizer=str(tokenizer)), dump_settings(recipe)
    return {"agent": agent, "step": step, "reward": tree["reward"], "limits": tree["limits"]}


@dataclass(frozen=True)
class LoopTask:
    """The stage that a backend with its own training loop trains. Paths are absolute, and visible to all machines."""

    recipe: AgentRecipe
    """The recipe of the stage; `rl.seed` is derived for it."""
    folder: Path
    """Where its files are."""
    policy: Path
    """The initial model folder."""
    tokenizer: Path
    """The folder of its tokenizer."""
    retriever: str
    """An index folder, a URL or a YAML file."""
    world: Path | None = None
    """The laptop world whose oracle judges."""
    train: Sequence[Question] = ()
    dev: Sequence[Question] = ()


def stages_of(recipe: AgentRecipe, folder: Path) -> list[Stage]:
    """The stages in order. Each starts from the policy of the previous one; the last produces `trained`."""
    if not recipe.stages:
        stage = Stage("", recipe, "warm", "trained", folder / "rl")
        return [stage] if recipe.learn != "demonstrations" else []
    names = list(recipe.stages)
    policies = ["warm", *names[:-1], "trained"]
    return [
        Stage(name, recipe.stage(name), start, trained, folder / "rl" / name)
        for name, start, trained in zip(names, policies, policies[1:], strict=False)
    ]


def select_settings(recipe: AgentRecipe) -> dict[str, SelectSettings]:
    """Setting → a choice of training questions."""
    stages = {name: recipe.stage(name) for name, changes in recipe.stages.items() if "select" in changes}
    return {"select": recipe.select, **{f"stages.{name}.select": stage.select for name, stage in stages.items()}}


def candidates(questions: Sequence[Question], settings: SelectSettings, name: str = "select") -> list[Question]:
    """The questions that pass the filters on data set, hops, type and yes/no answers; `name` is that of the setting."""
    return [question for question in settings.apply(questions, name) if settings.yes_no or not is_closed(question)]


def select(
    questions: Sequence[Question],
    settings: SelectSettings,
    accuracy: Accuracy,
    baselines: RagBaselines | None,
    seed: int,
    say: Callable[[str], None],
) -> list[Question]:
    """The training questions of a stage, in order; with `baselines` only those that naive RAG answers wrongly.

    Raises `DataError` when none is left.
    """
    chosen = candidates(questions, settings)
    if baselines is not None:
        failed = unsolved_by_rag(chosen, baselines, accuracy)
        chosen = list(failed.kept)
        say(
            f"{len(chosen)} questions that naive RAG fails; it answers {failed.solved}, and {failed.failed} are unknown"
        )
    if not chosen:
        raise DataError(f"none of the {len(questions)} training questions is left; ask for less in `select`")
    return draw(chosen, settings.most, seed)


def accuracy_of(recipe: AgentRecipe) -> Accuracy:
    """How the reward judges the generator's answers; by default `gen_acc` with a judge, else `cover_match`."""
    accuracies = (getattr(term.settings, "accuracy", None) for term in make_reward(recipe.reward).parts)
    return next(filter(None, accuracies), "gen_acc" if recipe.graders.judge else "cover_match")


def scored_trajectories(
    trajectories: Iterable[Trajectory], scoring: TrajectoryScorer
) -> Iterator[tuple[Trajectory, float]]:
    """Trajectories with their rewards; those without a reward are skipped."""
    remaining = iter(trajectories)
    while batch := list(islice(remaining, BATCH)):
        for trajectory, outcome in zip(batch, scoring(batch), strict=True):
            if isinstance(outcome, Reward):
                yield trajectory, outcome.value


def correct_trajectories(
    trajectories: Iterable[Trajectory], scoring: TrajectoryScorer, settings: KeepSettings, seed: int
) -> list[Trajectory]:
    """The trajectories with a reward of at least `at_least`, at most `keep` of each question. Faults are never kept.

    Raises `DataError` when no trajectory is kept.
    """
    by_question: dict[tuple[str, str], list[Trajectory]] = {}  # questions of several data sets may share ids
    for trajectory, reward in scored_trajectories(trajectories, scoring):
        if reward >= settings.at_least:
            by_question.setdefault((trajectory.question.id, trajectory.question.question), []).append(trajectory)
    right: list[Trajectory] = []
    for (ident, _), rewarded in sorted(by_question.items(), key=lambda item: item[0]):
        chosen = sorted(rewarded, key=lambda trajectory: trajectory.seed)  # stored order is that of completion
        random.Random(f"{seed}/{ident}").shuffle(chosen)
        if settings.prefer == "economical":
            chosen.sort(key=lambda trajectory: (len(trajectory.searches), trajectory.agent_tokens))
        right += chosen[: settings.keep]
    if not right:
        raise DataError(
            f"no trajectory reached a reward of {settings.at_least:g}, so there is nothing to learn from; "
            "lower at_least, or begin with a better agent"
        )
    return right
