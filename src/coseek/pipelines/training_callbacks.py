"""What an agent's training does beside its steps: tells a changing retriever, keeps rollouts, measures, tracks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.core.settings import dump_settings
from coseek.data.answers import exact_match
from coseek.data.trajectory import Trajectory
from coseek.graders.scoring import EpisodeScorer
from coseek.measure.question_groups import MACRO, datasets_of
from coseek.measure.retrieval import run_recall
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.run_record import TrainingRun
from coseek.pipelines.stages import Stage
from coseek.retrieval.retriever import Retriever, ScheduledRetriever, with_all_under
from coseek.rewards.reward import Reward
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.rl.callbacks import Callback, RolloutWriter, StepReport
from coseek.training.tracker import tracked
from coseek.training.trainer.workers import Workers


@dataclass(frozen=True, slots=True)
class SharedSchedule:
    """All that changes of a retriever, which may lie under others. Implements `ScheduledRetriever`."""

    parts: Sequence[ScheduledRetriever]

    def progress(self, step: int, steps: int) -> None:
        for part in self.parts:
            part.progress(step, steps)


def schedule_of(retriever: Retriever) -> SharedSchedule | None:
    """What changes over the run of a retriever and of those under it; `None` if nothing does."""
    parts = [one for one in with_all_under(retriever) if isinstance(one, ScheduledRetriever)]
    return SharedSchedule(parts) if parts else None


def check_in_turn(schedule: SharedSchedule | None, max_steps_behind: int) -> None:
    """Raise `SettingError` where servers would sample a step before the schedule has come to it. A part whose rate is
    constant has none."""
    if max_steps_behind and schedule is not None and any(getattr(part, "varies", True) for part in schedule.parts):
        raise SettingError(
            f"rollout.max_steps_behind={max_steps_behind} samples steps before the schedule of data.training_retriever "
            "has come to them; set it to 0"
        )


def tell_step(retriever: ScheduledRetriever, step: int, steps: int) -> None:
    """Tell a retriever that step `step` of `steps`, from 1, begins: the first has its first rate, the last its last."""
    retriever.progress(step - 1, max(1, steps - 1))


class RetrieverSchedule(Callback):
    """Tells a retriever that changes over the run how far the run is."""

    def __init__(self, retriever: ScheduledRetriever) -> None:
        self._retriever = retriever

    def before_step(self, report: StepReport) -> None:
        tell_step(self._retriever, report.step, report.steps)


def rollout_writer(stage: Stage, tokenizer: Path, workers: Workers) -> RolloutWriter:
    """The callback that keeps rollouts in `rollouts` of the stage's folder."""
    recipe = stage.recipe

    def settings_of(step: int) -> JsonObject:
        return {
            "agent": {
                "name": f"{stage.ends} before the updates of step {step}",  # no folder holds these weights
                "protocol": recipe.protocol,
                "prompt_template": recipe.prompt_template,
                "chat_template": recipe.chat_template,
                "temperature": recipe.rl.temperature,
                "tokenizer": str(tokenizer),
            },
            "step": step,
            "reward": dump_settings(recipe)["reward"],
            "limits": dump_settings(recipe.limits),
        }

    return RolloutWriter(stage.folder / "rollouts", recipe.rl.keep_rollouts, settings_of, workers)


def dev_metrics(runs: Sequence[Trajectory], scoring: EpisodeScorer) -> dict[str, float]:
    """Mean reward, strict EM and gold-passage recall of the runs without a fault; metrics that no question has are left
    out. With several data sets also of each (`exact_match/nq`), and their macro mean (`exact_match/macro`)."""
    whole = [run for run in runs if run.fault is None]
    if not whole:
        raise DataError("every run of the dev questions has a fault; see to the retriever first")
    rewards = scoring(whole)
    named: dict[str, list[float | None]] = {
        "reward": [one.value if isinstance(one, Reward) else None for one in rewards],
        "exact_match": [
            float(exact_match(run.answer, run.question.answers)) if run.question.answers else None for run in whole
        ],
        "recall": [run_recall(run) for run in whole],
    }
    sets = {group: set(idents) for group, idents in datasets_of(run.question for run in whole).items()}
    metrics: dict[str, float] = {}
    for name, values in named.items():
        known = [(run.question.id, value) for run, value in zip(whole, values, strict=True) if value is not None]
        groups = {group: [value for ident, value in known if ident in idents] for group, idents in sets.items()}
        means = {f"{name}/{group}": fmean(found) for group, found in groups.items() if found}
        if means and len(means) == len(sets):
            means[f"{name}/{MACRO}"] = fmean(means.values())
        metrics |= {**({name: fmean(value for _, value in known)} if known else {}), **means}
    return metrics


@contextmanager
def threads_and_trackers(training: TrainingRun[AgentRecipe] | TrainingRun[RetrieverRecipe]) -> Iterator[None]:
    """For a block, torch's threads as the recipe says, and its trackers, which the first worker tells."""
    recipe = training.recipe
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    trackers = recipe.track if training.workers.first else ()
    with tracked(trackers, training.folder, dump_settings(recipe), training.progress.say):
        yield
