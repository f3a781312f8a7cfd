"""Callbacks: hooks before and after a training step. The loop calls each of a list, with the step's report."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from coseek.core.progress import Evaluate, Progress
from coseek.training.rl.algorithm import Algorithm, GroupSettings
from coseek.training.rl.episodes import EpisodeBatch
from coseek.training.rl.monitor import Monitor
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.token_record import StepTokens
from coseek.training.trainer.checkpoint import HEALTHY, RunState
from coseek.training.trainer.metrics import Timer, as_written


@dataclass(slots=True)
class StepReport:
    """Results of one step."""

    step: int
    """Number of the step, from 1."""
    steps: int
    """Steps of the whole run."""
    row: dict[str, float] = field(default_factory=dict)
    """The step's metrics. A callback may add metrics, which later callbacks see."""
    episodes: EpisodeBatch = field(default_factory=lambda: EpisodeBatch((), {}, {}))
    """All scored episodes, and the counts of faults."""
    timer: Timer = field(default_factory=Timer)
    wants_tokens: bool = False
    """A callback sets it before the step, on all workers alike, to have `tokens`."""
    tokens: StepTokens | None = None
    """Values of each token in the step's losses; `None` where nothing was learnt from."""

    def is_due(self, every: int) -> bool:
        """Whether a task with the interval `every`, in steps (0: none), is due. After the last step every task is."""
        return self.step == self.steps or (every > 0 and self.step % every == 0)


class Callback:
    """Base class of callbacks. Every method is optional."""

    def begin(self) -> None:
        """Called once, before the first step, also when a run is resumed."""

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
                found = self._evaluate(report.step)
            report.row |= {f"eval/{name}": value for name, value in found.items()}


class AlarmWatch(Callback):
    """Updates the monitor and adds the alarms that are on."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def after_step(self, report: StepReport) -> None:
        report.row |= self._monitor.update(as_written(report.row))


class MetricsWriter(Callback):
    """Writes the step's row to `metrics.jsonl`."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def after_step(self, report: StepReport) -> None:
        parts = {f"runs_{name}": value for name, value in report.episodes.timings.items()}
        self._state.record(report.row | report.timer.seconds | parts)


class CheckpointWriter(Callback):
    """Saves a checkpoint every `every` steps, and keeps the last one that no alarm followed within `patience` steps."""

    def __init__(self, state: RunState, monitor: Monitor, every: int, patience: int) -> None:
        self._state, self._monitor, self._every, self._patience = state, monitor, every, patience

    def begin(self) -> None:
        if self._state.step:  # a kill may have come between the last checkpoint and this call
            self._keep()

    def after_step(self, report: StepReport) -> None:
        due = report.is_due(self._every)
        if due:
            self._state.save()
        if due or self._monitor.alarms:  # one that is over at the next checkpoint was an alarm, too
            self._keep()

    def _keep(self) -> None:
        self._state.keep(bool(self._monitor.alarms), self._patience)


class ProgressLine(Callback):
    """Reports the step, its reward, and the tokens and searches of agents per second of the whole step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began_s = time.monotonic()

    def before_step(self, report: StepReport) -> None:
        self._began_s = time.monotonic()

    def after_step(self, report: StepReport) -> None:
        row, seconds = report.row, time.monotonic() - self._began_s
        tokens, searches = (row.get("runs", 0) * row.get(name, 0.0) / seconds for name in ("agent_tokens", "searches"))
        note = f"reward {row.get('reward', 0.0):.2f}, {tokens:,.0f} tokens/s, {searches:,.1f} searches/s"
        self._progress.advance(report.step, note)


class AlarmStop(Callback):
    """Stops a run at an alarm (`rl.monitor.stop`). Alarms persist across resume."""

    def __init__(self, monitor: Monitor, state: RunState, checkpoints: Path) -> None:
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
"""Steps in a row without a gradient after which the training says so."""


class LearnsNothing(Callback):
    """Warns of groups of one run, and of steps that change no weight: neither shows in a loss of 0."""

    def __init__(self, algorithm: Algorithm, settings: RlSettings, progress: Progress) -> None:
        self._algorithm, self._settings, self._progress = algorithm, settings, progress
        self._quiet = 0

    def begin(self) -> None:
        if self._settings.group_size == 1 and isinstance(self._algorithm.settings, GroupSettings):
            self._progress.warn(
                f"rl.group_size=1: {self._algorithm.name} compares the runs of a question, and one run has none to be "
                "compared with, so its reward itself is its advantage and wrong runs teach nothing; raise "
                "rl.group_size, or set rl.algorithm=reinforce-pp or ppo"
            )

    def after_step(self, report: StepReport) -> None:
        moved = report.row.get("updates", 0) and report.row.get("grad_norm") != 0.0
        self._quiet = 0 if moved else self._quiet + 1
        if self._quiet == QUIET_STEPS:
            self._progress.warn(
                f"the last {QUIET_STEPS} steps had no gradient and changed no weight (loss 0): the runs of every "
                f"question had equal rewards (reward {report.row.get('reward', 0.0):.3g}); ask easier or harder "
                "questions, raise rl.group_size or rl.temperature, or see why the reward is flat"
            )
