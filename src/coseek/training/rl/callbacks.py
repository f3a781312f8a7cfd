"""Callbacks: hooks before and after each training step, such as metrics, alarms, checkpoints and kept rollouts."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from coseek.core.errors import DiskFault
from coseek.core.files import JsonObject, atomic_folder, json_line, sweep
from coseek.core.progress import Evaluate, Progress
from coseek.core.text import counted
from coseek.data.run import Run
from coseek.data.token_data import FILE
from coseek.retrieval.retriever import ScheduledRetriever, tell_step
from coseek.training.learner.checkpoint import HEALTHY, TrainingState
from coseek.training.learner.workers import Workers
from coseek.training.rl.algorithm import Algorithm, GroupSettings
from coseek.training.rl.experience import StepTokens, reward_data
from coseek.training.rl.monitor import Monitor
from coseek.training.rl.rollout import FailedTrajectory, ScoredTrajectory, TrajectoryBatch
from coseek.training.rl.settings import KeepRolloutsSettings, RlSettings
from coseek.training.tracker import Timer, as_written


@dataclass(slots=True)
class StepReport:
    """Results of one step."""

    step: int
    """Number of the step, from 1."""
    steps: int
    """Steps of the whole training."""
    row: dict[str, float] = field(default_factory=dict)
    """The step's metrics. A callback may add metrics, which later callbacks see."""
    episodes: TrajectoryBatch = field(default_factory=TrajectoryBatch)
    """All trajectories of the step."""
    timer: Timer = field(default_factory=Timer)
    wants_tokens: bool = False
    """Set by a callback before the step, on all workers alike, to get `tokens`."""
    tokens: StepTokens | None = None
    """Values of each token in the step's losses; `None` if nothing was trained on."""

    def is_due(self, every: int) -> bool:
        """Whether a task with the interval `every`, in steps (0: none), is due. After the last step every task is."""
        return self.step == self.steps or (every > 0 and self.step % every == 0)


class Callback:
    """Base class of callbacks. Every method is optional."""

    def begin(self) -> None:
        """Called once, before the first step, also when a training is resumed."""

    def before_step(self, report: StepReport) -> None:
        """Called before every step. The report holds the step's number and no metrics yet."""

    def after_step(self, report: StepReport) -> None:
        """Called after every step's updates."""


class Evaluation(Callback):
    """Adds the metrics of an evaluation, as `eval/NAME`. All workers evaluate, and get the same metrics."""

    def __init__(self, evaluate: Evaluate, every: int) -> None:
        self._evaluate, self._every = evaluate, every

    def after_step(self, report: StepReport) -> None:
        if report.is_due(self._every):
            with report.timer("evaluate_s"):
                metrics = self._evaluate(report.step)
            report.row |= {f"eval/{name}": value for name, value in metrics.items()}


class RetrieverSchedule(Callback):
    """Passes the training's progress to a retriever with a schedule."""

    def __init__(self, retriever: ScheduledRetriever) -> None:
        self._retriever = retriever

    def before_step(self, report: StepReport) -> None:
        tell_step(self._retriever, report.step, report.steps)


class MetricsWriter(Callback):
    """Writes the step's row to `metrics.jsonl`, with the alarms that are on."""

    def __init__(self, state: TrainingState, monitor: Monitor) -> None:
        self._state, self._monitor = state, monitor

    def after_step(self, report: StepReport) -> None:
        report.row |= self._monitor.update(as_written(report.row))
        row = report.row | report.timer.seconds
        timings = [episode.trajectory.timings for episode in report.episodes.episodes]
        for name in sorted({name for seconds in timings for name in seconds}):
            row[f"trajectory_{name}"] = fmean(seconds[name] for seconds in timings if name in seconds)
        self._state.log_metrics(row)


class CheckpointWriter(Callback):
    """Saves a checkpoint every `every` steps, and keeps the last one that no alarm followed within `patience` steps."""

    def __init__(self, state: TrainingState, monitor: Monitor, every: int, patience: int) -> None:
        self._state, self._monitor, self._every, self._patience = state, monitor, every, patience

    def begin(self) -> None:
        if self._state.step:  # the training may have been killed between the last checkpoint and this call
            self._update_healthy()

    def after_step(self, report: StepReport) -> None:
        is_due = report.is_due(self._every)
        if is_due:
            self._state.save()
        if is_due or self._monitor.alarms:  # an alarm counts even if it ends before the next checkpoint
            self._update_healthy()

    def _update_healthy(self) -> None:
        self._state.update_healthy(bool(self._monitor.alarms), self._patience)


class ProgressLine(Callback):
    """Reports the step, its reward, and the tokens and searches of agents per second of the whole step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started_s = time.monotonic()

    def before_step(self, report: StepReport) -> None:
        self._started_s = time.monotonic()

    def after_step(self, report: StepReport) -> None:
        row, seconds = report.row, time.monotonic() - self._started_s
        tokens, searches = (
            row.get("trajectories", 0) * row.get(name, 0.0) / seconds for name in ("agent_tokens", "searches")
        )
        note = f"reward {row.get('reward', 0.0):.2f}, {tokens:,.0f} tokens/s, {searches:,.1f} searches/s"
        self._progress.advance(report.step, note)


class AlarmStop(Callback):
    """Stops a training at an alarm (`rl.monitor.stop`). Alarms persist across resume."""

    def __init__(self, monitor: Monitor, state: TrainingState, checkpoints: Path) -> None:
        self._monitor, self._state, self._checkpoints = monitor, state, checkpoints

    def begin(self) -> None:
        """Raise `MonitorStop` while an alarm is on."""
        if self._monitor.alarms:
            raise self._monitor.stop_error(self._checkpoints / HEALTHY)

    def after_step(self, report: StepReport) -> None:
        """While an alarm is on, save a checkpoint of the last step and raise `MonitorStop`."""
        if self._monitor.alarms:
            self._state.save()
            self.begin()


QUIET_STEPS = 3
"""Consecutive steps without a gradient after which the training warns."""


class LearnsNothing(Callback):
    """Warns of groups of one trajectory, and of steps that change no weight: neither shows in a loss of 0."""

    def __init__(self, algorithm: Algorithm, settings: RlSettings, progress: Progress) -> None:
        self._algorithm, self._settings, self._progress = algorithm, settings, progress
        self._steps_without_gradient = 0

    def begin(self) -> None:
        if self._settings.group_size == 1 and isinstance(self._algorithm.settings, GroupSettings):
            self._progress.warn(
                f"rl.group_size=1: {self._algorithm.name} compares the runs of a question, and one run has none to be "
                "compared with, so its reward itself is its advantage and wrong runs teach nothing; raise "
                "rl.group_size, or set rl.algorithm=reinforce-pp or ppo"
            )

    def after_step(self, report: StepReport) -> None:
        if report.row.get("trajectories", 1) == report.row.get("faults"):
            return
        has_gradient = report.row.get("updates", 0) and report.row.get("grad_norm") != 0.0
        self._steps_without_gradient = 0 if has_gradient else self._steps_without_gradient + 1
        if (steps := self._steps_without_gradient) == min(QUIET_STEPS, report.steps):
            self._progress.warn(
                f"the last {counted(steps, 'step')} had no gradient and changed no weight (loss 0): the runs of every "
                f"question had equal rewards (reward {report.row.get('reward', 0.0):.3g}); ask easier or harder "
                "questions, raise rl.group_size or rl.temperature, or see why the reward is flat"
            )


# Rollout writer: keeps the rollouts of some steps of training as run folders, within a budget of disk space.
#
#     FOLDER/step-000010/run.yaml, trajectories.jsonl, tokens.jsonl
#
# Folders are written atomically. On resume a repeated step is written again; a step that was removed to keep the budget
# stays removed, so a training that was killed keeps the same steps as one that was not.

MAX_STEP_SHARE = 0.1
"""Maximum share of the budget that one step takes."""


class RolloutWriter(Callback):
    """Writes every n-th step's rollouts of all workers, with rewards and token data. The first worker writes."""

    def __init__(
        self, folder: Path, settings: KeepRolloutsSettings, describe: Callable[[int], JsonObject], workers: Workers
    ) -> None:
        """`describe` gives the settings in the `run.yaml` of a step."""
        self._folder, self._settings, self._describe, self._workers = folder, settings, describe, workers

    def begin(self) -> None:
        """Remove temporary files of a killed process."""
        if self._workers.is_main:
            sweep(self._folder)

    def before_step(self, report: StepReport) -> None:
        report.wants_tokens = self._settings.every > 0 and report.is_due(self._settings.every)

    def after_step(self, report: StepReport) -> None:
        """Write the step's rollouts if it is due. Raises `DiskFault` if they cannot be written."""
        if not (report.wants_tokens and self._workers.is_main):
            return
        with report.timer("keep_s"):
            try:
                self._keep(report)
            except OSError as error:
                raise DiskFault(
                    f"the rollouts of step {report.step} could not be written to {self._folder} "
                    f"({error.strerror or error}); make room there and go on with --resume, or with "
                    "rl.keep_rollouts.every=0"
                ) from None

    def _keep(self, report: StepReport) -> None:
        step, folders = report.step, self._kept_steps()
        if any(kept_step > step for kept_step in folders) and step not in folders:
            return  # a killed session wrote this step and has removed it since
        folder = folders.get(step, self._folder / f"step-{step:06d}")
        atomic_folder(folder, lambda temp_folder: self._write(temp_folder, report))
        self._thin(step)

    def _write(self, folder: Path, report: StepReport) -> None:
        """Write the step's groups, in order, up to its share of the budget, and at least one."""
        tokens = report.tokens
        row_of = {} if tokens is None else tokens.row_of()
        groups: dict[int, list[ScoredTrajectory | FailedTrajectory]] = {}
        for episode in report.episodes.episodes:
            groups.setdefault(episode.group, []).append(episode)
        budget = MAX_STEP_SHARE * self._settings.mb * 1e6
        trajectory_lines: list[str] = []
        token_lines: list[str] = []
        written_groups = 0
        for _, group in sorted(groups.items()):
            trajectories = [json_line(episode.trajectory.to_json()) for episode in group]
            token_data: list[str] = []
            for episode in group:
                if isinstance(episode, ScoredTrajectory):
                    row = row_of.get((episode.trajectory.question.id, episode.trajectory.seed))
                    data = reward_data(episode) if tokens is None or row is None else tokens.token_data(row)
                    token_data.append(json_line(data.to_json()))
            budget -= sum(len(line.encode()) for line in (*trajectories, *token_data))
            if budget < 0 and trajectory_lines:
                break
            trajectory_lines += trajectories
            token_lines += token_data
            written_groups += 1
        settings = {**self._describe(report.step), "groups": written_groups, "groups_of_step": len(groups)}
        with Run.create(folder, settings).open_for_append() as file:
            file.writelines(trajectory_lines)
            (folder / FILE).write_text("".join(token_lines), encoding="utf-8")  # before the digests

    def _thin(self, newest: int) -> None:
        """Double the distance between kept steps until they fit the budget. The newest stays."""
        folders = self._kept_steps()
        sizes = {step: sum(path.stat().st_size for path in folder.iterdir()) for step, folder in folders.items()}
        distance = self._settings.every
        while len(sizes) > 1 and sum(sizes.values()) > self._settings.mb * 1e6:
            distance *= 2
            for step in [step for step in sizes if step % distance and step != newest]:
                shutil.rmtree(folders[step])
                del sizes[step]

    def _kept_steps(self) -> dict[int, Path]:
        """Kept step → its folder."""
        return {int(path.name.removeprefix("step-")): path for path in self._folder.glob("step-*")}
