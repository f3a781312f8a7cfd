"""Monitor: named alarms, each a pure function of the rows of `metrics.jsonl`. Uses no tensor, clock or model.

| alarm | condition on the mean of the last window, against the best or lowest window mean of the training |
|---|---|
| no-search | `search_rate` is below half of its best |
| no-answer | `answered` + `declined` is below three quarters of its best |
| endless-search | `truncated` rose by a quarter of all trajectories, and `searches` did not fall |
| format-hacking | the outcome fell by a third from its best; reward and `valid` rose |
| likelihood-decay | `right_shift` is negative in nearly every step, and its sum is large |
| exploding | gradients, the step's KL, or the log-probability gap between sampler and trainer are too large |
| no-signal | nearly all groups have equal rewards, and the outcome is not near 1 |
| faults | half of the trajectories or more are left out of training because a part failed |

Thresholds are relative to the training's own levels. A protocol without answers, or a policy that cannot search yet,
raises no alarm. A share must also change by more than noise (`AlarmWindow.exceeds_noise`). One cause may raise several
alarms: an agent that searches until its budget ends has no answer either.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import TypeAlias

from coseek.core.errors import RunError
from coseek.core.progress import Progress
from coseek.training.rl.algorithm import CriticSettings, TurnSettings, settings_of
from coseek.training.rl.settings import AlarmName, MonitorSettings, RlSettings

Row: TypeAlias = Mapping[str, float]
OUTCOME = "outcome"
"""Placeholder for the metric that `monitor.outcome` names."""
MIN_STANDARD_ERRORS = 5.0
"""Standard errors by which a share must change: the extremes of 200 steps of noise stay within them."""
ALARM_PREFIX = "alarm/"
"""Prefix of the metric that is 1 while an alarm is on."""
FAULT_PREFIX = "faults/"
"""Prefix of the metrics that count the trajectories in which a part failed, by part."""
SOLVED_OUTCOME = 0.9
"""Outcome from which equal rewards within groups are expected."""
STEADY_SHARE = 0.8
"""Share of steps with a negative shift from which a fall counts as steady."""


class MonitorStop(RunError):
    """Raised when an alarm stops a training (`rl.monitor.stop`)."""


@dataclass(frozen=True, slots=True)
class AlarmWindow:
    """The rows that contain all metrics of an alarm."""

    rows: Sequence[Row]
    recent: Sequence[Row]
    """Those among the last `steps` steps; at least one."""
    steps: int
    """Length of the window."""
    questions: int
    """Questions in one window."""
    settings: MonitorSettings

    def means(self, name: str) -> list[float]:
        """Return moving averages over `steps` consecutive rows, oldest first. A missing metric counts as 0."""
        name = self.settings.outcome if name == OUTCOME else name
        sums = [0.0, *accumulate(row.get(name, 0.0) for row in self.rows)]
        return [(sums[end] - sums[end - self.steps]) / self.steps for end in range(self.steps, len(sums))]

    def exceeds_noise(self, before: float, now: float) -> bool:
        """Whether a share changed by more than noise separates the best and the worst window of a long training.

        The trajectories of one question are strongly correlated, so each question counts as one draw. Logged trainings
        agree with that.
        """
        share = min(max((before + now) / 2.0, 0.0), 1.0)
        return abs(now - before) > MIN_STANDARD_ERRORS * math.sqrt(share * (1.0 - share) / self.questions)

    def fall(self, means: Sequence[float], share: float) -> tuple[float, float] | None:
        """Return (last mean, best mean) if the last is below `share` of the best, beyond noise."""
        now, best = means[-1], max(means)
        return (now, best) if now < share * best and self.exceeds_noise(best, now) else None


@dataclass(frozen=True, slots=True)
class AlarmCheck:
    """One condition of an alarm. `find` returns a sentence with the values and a remedy, or `None`."""

    alarm: AlarmName
    needs: tuple[str, ...]
    find: Callable[[AlarmWindow], str | None]
    at_once: bool = False
    """Whether the check runs before a window is full."""

    def metrics(self, settings: MonitorSettings) -> tuple[str, ...]:
        return tuple(settings.outcome if name == OUTCOME else name for name in self.needs)


def find_alarms(rows: Sequence[Row], settings: RlSettings) -> dict[AlarmName, str]:
    """Return the alarms that are on after the last of these rows, with their advice."""
    window, questions = settings.monitor.window, settings.monitor.window * settings.questions_per_step
    alarms: dict[AlarmName, str] = {}
    for check in active_checks(settings):
        names = check.metrics(settings.monitor)
        complete, recent = (
            [row for row in candidates if all(name in row for name in names)] for candidates in (rows, rows[-window:])
        )
        if recent and (check.at_once or len(complete) >= window):
            advice = check.find(AlarmWindow(complete, recent, window, questions, settings.monitor))
            if advice is not None:
                alarms.setdefault(check.alarm, advice)
    return alarms


def alarm_steps(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Return alarm → the steps in which it was on, in the order in which alarms were first raised."""
    steps: dict[str, list[int]] = {}
    for row in rows:
        for name in sorted(row):
            if name.startswith(ALARM_PREFIX):
                steps.setdefault(name.removeprefix(ALARM_PREFIX), []).append(int(row["step"]))
    return steps


def active_checks(settings: RlSettings) -> list[AlarmCheck]:
    """Return the active checks. `no-signal` does not apply to groups of one trajectory, nor to algorithms that learn
    from groups without spread: by a critic, by the mean of the step, or by credit of turns."""
    ignored = set(settings.monitor.ignore)
    if settings.group_size == 1 or not _needs_spread(settings.algorithm):
        ignored.add("no-signal")
    return [check for check in CHECKS if check.alarm not in ignored]


@cache
def _needs_spread(algorithm: str) -> bool:
    return algorithm != "reinforce-pp" and not issubclass(settings_of(algorithm), (CriticSettings, TurnSettings))


def _no_search(window: AlarmWindow) -> str | None:
    fall = window.fall(window.means("search_rate"), window.settings.search_share)
    return fall and (
        f"{fall[0]:.0%} of the runs search, down from {fall[1]:.0%}; a search costs more reward than it gains: lower "
        "the charge for a search, hold the policy with rl.kl_coef, or train on questions that need a search"
    )


def _no_answer(window: AlarmWindow) -> str | None:
    answered, declined = window.means("answered"), window.means("declined")
    fall = window.fall([sum(pair) for pair in zip(answered, declined, strict=True)], window.settings.answer_share)
    return fall and (
        f"{fall[0]:.0%} of the runs answer or decline, down from {fall[1]:.0%}; check how the others end (`truncated`, "
        "`valid`): give no reward to runs without an answer, and raise the token limits so that an answer fits"
    )


def _endless_search(window: AlarmWindow) -> str | None:
    truncated, searches = window.means("truncated"), window.means("searches")
    lowest = truncated.index(min(truncated))
    if (
        truncated[-1] - truncated[lowest] <= window.settings.truncated_rise
        or not window.exceeds_noise(truncated[lowest], truncated[-1])
        or searches[-1] < searches[lowest]
    ):
        return None
    return (
        f"a budget ends {truncated[-1]:.0%} of the runs, up from {truncated[lowest]:.0%}; searches per run went from "
        f"{searches[lowest]:.1f} to {searches[-1]:.1f}: charge for a search (reward.searches) or for a truncated run "
        "(rl.truncated=penalise)"
    )


def _format_hacking(window: AlarmWindow) -> str | None:
    outcome, reward, valid = window.means(OUTCOME), window.means("reward"), window.means("valid")
    best = outcome.index(max(outcome))
    if (
        outcome[-1] >= window.settings.outcome_share * outcome[best]
        or not window.exceeds_noise(outcome[best], outcome[-1])
        or reward[-1] < reward[best]
        or valid[-1] - valid[best] <= window.settings.valid_rise
    ):
        return None
    return (
        f"{outcome[-1]:.0%} of the runs are right, down from {outcome[best]:.0%}, while the reward went from "
        f"{reward[best]:.2f} to {reward[-1]:.2f} and valid runs from {valid[best]:.0%} to {valid[-1]:.0%}: the policy "
        "gains reward from format instead of answers; lower the weight of the format, or make it a gate "
        "(reward.valid={gate: true})"
    )


def _likelihood_decay(window: AlarmWindow) -> str | None:
    shifts = [row["right_shift"] for row in window.rows[-2 * window.steps :]]
    down, total = sum(shift < 0.0 for shift in shifts) / len(shifts), sum(shifts)
    if len(shifts) < 2 * window.steps or down < STEADY_SHARE or total >= -window.settings.likelihood_fall:
        return None
    return (
        f"in {down:.0%} of the last {len(shifts)} steps the updates made right runs less likely, by "
        f"{-total:.2g} nats per token in total: updates on wrong runs lower the likelihood of right ones; lower "
        "rl.policy.optimizer.lr, hold the policy with rl.kl_coef, or sample more runs per question (rl.group_size)"
    )


def _long_gradients(window: AlarmWindow) -> str | None:
    earlier = [row["grad_norm"] for row in window.rows[: -window.steps]]
    if len(earlier) < window.steps:
        return None
    smallest, median_norm = min(row["grad_norm"] for row in window.rows[-window.steps :]), median(earlier)
    if smallest <= window.settings.gradient_factor * median_norm:
        return None
    return (
        f"the smallest gradient norm of the last {window.steps} steps is {smallest:.2g}, and the median before was "
        f"{median_norm:.2g}: {LOWER_RATE}, and check `loss` and `ratio_max`"
    )


def _above_limit(window: AlarmWindow, metric: str, advice: str) -> str | None:
    """Return the advice if the recent mean of a metric exceeds the setting of its name."""
    mean = fmean(row[metric] for row in window.recent)  # there may be fewer rows than `steps`
    return advice.format(mean) if mean > getattr(window.settings, metric) else None


def _no_signal(window: AlarmWindow) -> str | None:
    share, outcome = window.means("frac_reward_zero_std")[-1], window.means(OUTCOME)[-1]
    if share < window.settings.flat_share or outcome >= SOLVED_OUTCOME:
        return None
    return (
        f"{share:.0%} of the groups have equal rewards, and {outcome:.0%} of the runs are right: there is no advantage "
        "to learn from; use easier or harder questions, larger groups, or a finer-grained reward"
    )


def _faults(window: AlarmWindow) -> str | None:
    fault_share = fmean(row["faults"] / row["trajectories"] for row in window.recent)
    if fault_share < window.settings.fault_share:
        return None
    parts = sorted(
        {name.removeprefix(FAULT_PREFIX) for row in window.recent for name in row if name.startswith(FAULT_PREFIX)}
    )
    return (
        f"{fault_share:.0%} of the runs are left out of training because {' and '.join(parts)} failed in them: repair "
        "that first"
    )


LOWER_RATE = "lower rl.policy.optimizer.lr"
GAP = (
    "the log-probabilities of sampler and trainer differ by {:.2g} nats per token: training is off-policy; compare "
    "precision, temperature and weights of the two, or set rl.old_logprobs=recompute"
)
FAR_STEP = (
    f"one step moves the policy by {{:.2g}} nats per token: {LOWER_RATE}, or lower rl.epochs and rl.num_minibatches"
)

CHECKS = (
    AlarmCheck("no-search", ("search_rate",), _no_search),
    AlarmCheck("no-answer", ("answered",), _no_answer),
    AlarmCheck("endless-search", ("truncated", "searches"), _endless_search),
    AlarmCheck("format-hacking", (OUTCOME, "reward", "valid"), _format_hacking),
    AlarmCheck("likelihood-decay", ("right_shift",), _likelihood_decay),
    AlarmCheck("exploding", ("grad_norm",), _long_gradients),
    AlarmCheck("exploding", ("logprob_gap",), partial(_above_limit, metric="logprob_gap", advice=GAP), at_once=True),
    AlarmCheck("exploding", ("kl_old",), partial(_above_limit, metric="kl_old", advice=FAR_STEP), at_once=True),
    AlarmCheck("no-signal", ("frac_reward_zero_std", OUTCOME), _no_signal),
    AlarmCheck("faults", ("faults", "trajectories"), _faults),
)


class Monitor:
    """Raises the alarms of a training. It reads only the written rows, so a resumed training raises the same alarms."""

    def __init__(self, settings: RlSettings, rows: Iterable[Row], progress: Progress) -> None:
        self._settings, self._progress = settings, progress
        self._rows: list[Row] = list(rows)
        self._window = settings.monitor.window
        self._missing_reported = False
        self.alarms: dict[AlarmName, str] = find_alarms(self._rows, settings) if self._rows else {}
        """Alarms that are on now, with advice."""

    def update(self, row: Row) -> dict[str, float]:
        """Check a step's metrics and report new alarms. Returns the alarm metrics to add to the step's row."""
        self.alarms = find_alarms([*self._rows, row], self._settings)
        recent = self._rows[-self._window :]
        for name, advice in self.alarms.items():
            if not any(f"{ALARM_PREFIX}{name}" in logged for logged in recent):
                self._progress.warn(f"alarm {name} in step {row['step']:.0f}: {advice}")
        alarm_metrics = {"alarms": float(len(self.alarms)), **{f"{ALARM_PREFIX}{name}": 1.0 for name in self.alarms}}
        self._rows.append({**row, **alarm_metrics})
        self._report_missing_metrics()
        return alarm_metrics

    def stop_error(self, healthy: Path) -> MonitorStop:
        """Return the error that stops the training; `healthy` is where the last healthy checkpoint is, if any."""
        name, advice = next(iter(self.alarms.items()))
        kept = f"the last healthy checkpoint is {healthy}" if healthy.exists() else "there is no healthy checkpoint yet"
        return MonitorStop(
            f"stopped after step {self._rows[-1]['step']:.0f} by the alarm {name}: {advice}; {kept}; to continue "
            "anyway: --resume rl.monitor.stop=false (of a stage: stages.NAME.rl.monitor.stop=false)"
        )

    def _report_missing_metrics(self) -> None:
        """Report once, when the first window is full, which alarms lack a metric."""
        if self._missing_reported or len(self._rows) < self._window:
            return
        self._missing_reported = True
        for check in active_checks(self._settings):
            names = check.metrics(self._settings.monitor)
            missing = [name for name in names if not any(name in row for row in self._rows)]
            if missing:
                self._progress.warn(
                    f"monitor: no metric {' or '.join(missing)}, so alarm {check.alarm} cannot be raised"
                )
