"""Stages: the parts of a recipe in which an agent learns from its own runs, one after the other."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.data.question import Question, load_questions, save_questions
from coseek.data.trajectory import Trajectory
from coseek.graders.rag_baseline import RagBaselines, is_closed, unsolved_by_rag
from coseek.graders.scoring import EpisodeScorer
from coseek.pipelines.agent_recipe import AgentRecipe, SelectSettings
from coseek.rewards.accuracy import Accuracy
from coseek.rewards.reward import Reward, make_reward
from coseek.training.sft.settings import RejectionSettings
from coseek.training.trainer.data_order import derive_seed

Say: TypeAlias = Callable[[str], None]
BATCH = 256
"""Runs that are scored at once."""
CHOSEN = "questions.jsonl"
"""The training questions of a stage whose questions a baseline chose."""


@dataclass(frozen=True)
class Stage:
    """One of them: how it is trained, and which policy it makes out of which."""

    name: str
    """Empty for a recipe without stages."""
    recipe: AgentRecipe
    """The recipe with what the stage replaces."""
    begins: str
    """Name of the policy whose weights it begins with."""
    ends: str
    """Name of the policy that it leaves behind."""
    folder: Path
    """Its metrics and checkpoints."""

    def seed(self, *parts: int | str) -> int:
        """A seed of its own; stages share no randomness."""
        return derive_seed(self.recipe.seed, *parts, *([self.name] if self.name else []))

    # Which questions a baseline leaves over is written down: one that was a fault at the start, and is known when the
    # run goes on, would change them all.

    def chosen(self) -> list[Question] | None:
        """The questions that were chosen when the stage began."""
        path = self.folder / CHOSEN
        return load_questions(path) if path.exists() else None

    def choose(self, questions: list[Question]) -> list[Question]:
        """Write the questions down; returns them."""
        save_questions(self.folder / CHOSEN, questions)
        return questions


def stages_of(recipe: AgentRecipe, folder: Path) -> list[Stage]:
    """The stages in their order; each begins where the one before it ended, and the last one leaves `trained`."""
    if not recipe.stages:
        only = Stage("", recipe, "warm", "trained", folder / "rl")
        return [only] if recipe.learn != "demonstrations" else []
    names = list(recipe.stages)
    ends = [*names[:-1], "trained"]
    return [
        Stage(name, recipe.stage(name), begins, end, folder / "rl" / name)
        for name, begins, end in zip(names, ["warm", *ends], ends, strict=False)
    ]


def metrics_files(recipe: AgentRecipe, folder: Path) -> list[Path]:
    """Every `metrics.jsonl` of a training folder so far, in the order in which they are begun."""
    parts = [folder / "warm-start", *(stage.folder for stage in stages_of(recipe, folder))]
    # Reinforcement learning writes into a stage's folder, supervised training into one for each round.
    names = ("metrics.jsonl", "round-*/metrics.jsonl")
    return [path for part in parts for name in names for path in sorted(part.glob(name))]


def candidates(questions: Sequence[Question], settings: SelectSettings) -> list[Question]:
    """The training questions that may be asked, by what is known of them alone."""
    return [
        one
        for one in questions
        if (settings.hops is None or one.hops in settings.hops) and (settings.yes_no or not is_closed(one))
    ]


def select(
    questions: Sequence[Question],
    settings: SelectSettings,
    accuracy: Accuracy,
    baselines: RagBaselines | None,
    say: Say,
) -> list[Question]:
    """The training questions that a stage asks, in their order. `baselines` where naive RAG must have failed."""
    chosen = candidates(questions, settings)
    if baselines is not None:
        found = unsolved_by_rag(chosen, baselines, accuracy)
        chosen = list(found.kept)
        say(f"{len(chosen)} questions that naive RAG fails; it answers {found.solved}, and {found.failed} are unknown")
    if not chosen:
        raise DataError(f"none of the {len(questions)} training questions is left; ask for less in `select`")
    return chosen[: settings.most]


def accuracy_of(recipe: AgentRecipe) -> Accuracy:
    """When the reward counts an answer of the generator as right. One that never asks: with a judge as 004, else by
    words alone."""
    named = (getattr(part.settings, "accuracy", None) for part in make_reward(recipe.reward).parts)
    return next((one for one in named if one is not None), "gen_acc" if recipe.graders.judge else "cover_match")


def right_runs(
    runs: Iterable[Trajectory], scoring: EpisodeScorer, settings: RejectionSettings, seed: int
) -> list[Trajectory]:
    """The runs to learn from: those paid enough, `keep` of each question at most. Faults are not paid and not right."""
    by_question: dict[str, list[Trajectory]] = {}
    written = list(runs)
    for start in range(0, len(written), BATCH):
        batch = written[start : start + BATCH]
        for run, paid in zip(batch, scoring(batch), strict=True):
            if isinstance(paid, Reward) and paid.value >= settings.at_least:
                by_question.setdefault(run.question.id, []).append(run)
    kept: list[Trajectory] = []
    for ident in sorted(by_question):
        found = sorted(by_question[ident], key=lambda run: run.seed)  # they were written in the order of their ending
        random.Random(f"{seed}/{ident}").shuffle(found)
        kept += found[: settings.keep]
    if not kept:
        raise DataError(
            f"no run was paid {settings.at_least:g} or more, so there is nothing to learn from; "
            "lower rejection.at_least, or begin with a better agent"
        )
    return kept
