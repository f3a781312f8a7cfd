"""Health: named alarms, each a pure function of the rows of `metrics.jsonl`. Knows no tensor, clock or model.

| alarm | a window's mean, against the best or least that any window of the run has had |
|---|---|
| no-search | `search_rate` has fallen to less than half |
| no-answer | `answered` has fallen to less than three quarters |
| endless-search | `truncated` has risen by a quarter of all runs, and they do not search less |
| format-hacking | the outcome has fallen by a third since its best; reward and `valid` have risen |
| likelihood-decay | `right_shift` is negative nearly all the time, and adds up |
| exploding | gradients, the step's KL, or the gap between sampler and trainer are out of all proportion |
| no-signal | nearly all groups are paid all alike, and the outcome is not near 1 |
| faults | half of the runs or more are left out because a part failed: nothing is learnt from them |

Levels are the run's own, so a protocol without answers or a policy that cannot search yet raises nothing: only what was
there can be lost. A share must also change by more than chance does (`Seen.clear`). One alarm may bring another: a run
that searches until its budget ends has no answer either.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import TypeAlias

from coseek.core.errors import RunError
from coseek.core.progress import Progress
from coseek.training.rl.settings import AlarmName, MonitorSettings, RlSettings

Row: TypeAlias = Mapping[str, float]
OUTCOME = "outcome"
"""Stands for the metric that `monitor.outcome` names."""
ERRORS = 5.0
"""Standard errors that a share must change by: the extremes of 200 steps of noise lie within that."""
ALARM = "alarm/"
"""In front of an alarm's name in a row in which it is on."""
FAULT = "faults/"
"""In front of the name of what failed, in a row of a step in which it did."""
SOLVED = 0.9
"""An outcome from which on groups may well be paid all alike."""
STEADY = 0.8
"""Share of the steps that must point down for a steady fall."""


class MonitorStop(RunError):
    """A run that stopped at an alarm because its settings say so."""


@dataclass(frozen=True, slots=True)
class AlarmWindow:
    """The rows in which an alarm's metrics are all there."""

    rows: Sequence[Row]
    recent: Sequence[Row]
    """Those of them among the run's last `window` steps; at least one."""
    window: int
    questions: int
    """Questions in a window."""
    settings: MonitorSettings

    def readings(self, name: str) -> list[float]:
        """Means of `window` neighbouring rows, oldest first."""
        name = self.settings.outcome if name == OUTCOME else name
        sums = [0.0, *accumulate(row[name] for row in self.rows)]
        return [(sums[end] - sums[end - self.window]) / self.window for end in range(self.window, len(sums))]

    def clear(self, before: float, now: float) -> bool:
        """Whether a share has changed by more than chance does between the best and the worst window of a long run.

        A question's runs share most of their luck, so each question counts as one draw: that is what logs look like.
        """
        middle = min(max((before + now) / 2.0, 0.0), 1.0)
        return abs(now - before) > ERRORS * math.sqrt(middle * (1.0 - middle) / self.questions)

    def now(self, name: str) -> float:
        """Mean of the recent rows, few as they may be."""
        return fmean(row[name] for row in self.recent)


@dataclass(frozen=True, slots=True)
class AlarmCheck:
    """One way to find that something is wrong: a sentence with the values and what to do, or `None`."""

    alarm: AlarmName
    needs: tuple[str, ...]
    look: Callable[[AlarmWindow], str | None]
    at_once: bool = False
    """Whether less than a full window is enough."""

    def metrics(self, settings: MonitorSettings) -> tuple[str, ...]:
        return tuple(settings.outcome if name == OUTCOME else name for name in self.needs)


def find_alarms(rows: Sequence[Row], settings: RlSettings) -> dict[AlarmName, str]:
    """The alarms that are on after the last of these rows, with their advice."""
    window, questions = settings.monitor.window, settings.monitor.window * settings.questions_per_step
    found: dict[AlarmName, str] = {}
    for check in checks_of(settings):
        names = check.metrics(settings.monitor)
        within, recent = (
            [row for row in part if all(name in row for name in names)] for part in (rows, rows[-window:])
        )
        if recent and (check.at_once or len(within) >= window):
            advice = check.look(AlarmWindow(within, recent, window, questions, settings.monitor))
            if advice is not None:
                found.setdefault(check.alarm, advice)
    return found


def alarm_steps(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Alarm → the steps in which it was on, as the rows say: the first ones to be raised come first."""
    steps: dict[str, list[int]] = {}
    for row in rows:
        for name in sorted(row):
            if name.startswith(ALARM):
                steps.setdefault(name.removeprefix(ALARM), []).append(int(row["step"]))
    return steps


def checks_of(settings: RlSettings) -> list[AlarmCheck]:
    """The checks that are watched; groups of one are alike by nature."""
    ignored = set(settings.monitor.ignore) | ({"no-signal"} if settings.group_size == 1 else set())
    return [check for check in CHECKS if check.alarm not in ignored]


def _no_search(seen: AlarmWindow) -> str | None:
    readings = seen.readings("search_rate")
    now, level = readings[-1], max(readings)
    if now >= seen.settings.search_share * level or not seen.clear(level, now):
        return None
    return (
        f"{now:.0%} of the runs search, and {level:.0%} did; a search costs more than it earns: take off what the "
        "reward charges for one, hold the policy with rl.kl, or train on questions that cannot be answered without"
    )


def _no_answer(seen: AlarmWindow) -> str | None:
    readings = seen.readings("answered")
    now, level = readings[-1], max(readings)
    if now >= seen.settings.answer_share * level or not seen.clear(level, now):
        return None
    return (
        f"{now:.0%} of the runs answer, and {level:.0%} did; look at how the others end (`truncated`, `valid`): pay "
        "for nothing that a run without an answer can have, and let limits leave room for one"
    )


def _endless_search(seen: AlarmWindow) -> str | None:
    truncated, searches = seen.readings("truncated"), seen.readings("searches")
    least = truncated.index(min(truncated))
    if (
        truncated[-1] - truncated[least] <= seen.settings.truncated_rise
        or not seen.clear(truncated[least], truncated[-1])
        or searches[-1] < searches[least]
    ):
        return None
    return (
        f"a budget ends {truncated[-1]:.0%} of the runs, and {truncated[least]:.0%} before; searches a run went from "
        f"{searches[least]:.1f} to {searches[-1]:.1f}: charge for a search (reward.searches), or for such ends "
        "(rl.truncated=penalise)"
    )


def _format_hacking(seen: AlarmWindow) -> str | None:
    outcome, reward, valid = seen.readings(OUTCOME), seen.readings("reward"), seen.readings("valid")
    best = outcome.index(max(outcome))
    if (
        outcome[-1] >= seen.settings.outcome_share * outcome[best]
        or not seen.clear(outcome[best], outcome[-1])
        or reward[-1] < reward[best]
        or valid[-1] - valid[best] <= seen.settings.valid_rise
    ):
        return None
    return (
        f"{outcome[-1]:.0%} of the runs are right, and {outcome[best]:.0%} were, while the reward went from "
        f"{reward[best]:.2f} to {reward[-1]:.2f} and valid runs from {valid[best]:.0%} to {valid[-1]:.0%}: form is "
        "paid where answers should be; lower its weight, or make it a gate (reward.valid={gate: true})"
    )


def _likelihood_decay(seen: AlarmWindow) -> str | None:
    shifts = [row["right_shift"] for row in seen.rows[-2 * seen.window :]]
    down, total = sum(shift < 0.0 for shift in shifts) / len(shifts), sum(shifts)
    if len(shifts) < 2 * seen.window or down < STEADY or total >= -seen.settings.likelihood_fall:
        return None
    return (
        f"in {down:.0%} of the last {len(shifts)} steps the updates made right runs less likely, by "
        f"{-total:.2g} nats a token together: wrong runs drag the right ones down; lower rl.policy.optimiser.lr, hold "
        "the policy with rl.kl, or take more runs of a question (rl.group_size)"
    )


def _long_gradients(seen: AlarmWindow) -> str | None:
    earlier = [row["grad_norm"] for row in seen.rows[: -seen.window]]
    if len(earlier) < seen.window:
        return None
    now, level = min(row["grad_norm"] for row in seen.rows[-seen.window :]), median(earlier)
    if now <= seen.settings.gradient_factor * level:
        return None
    return (
        f"no gradient of the last {seen.window} steps is shorter than {now:.2g}, and {level:.2g} was usual: "
        f"{CALM}, and look at `loss` and `ratio_max`"
    )


def _gap(seen: AlarmWindow) -> str | None:
    now = seen.now("logprob_gap")
    if now <= seen.settings.logprob_gap:
        return None
    return (
        f"sampler and trainer differ by {now:.2g} nats a token: what is trained is not what was sampled; compare "
        "precision, temperature and weights of the two, or take rl.old_logprobs=recompute"
    )


def _far_steps(seen: AlarmWindow) -> str | None:
    now = seen.now("kl_old")
    if now <= seen.settings.kl_old:
        return None
    return f"a step's updates move the policy by {now:.2g} nats a token: {CALM}, or fewer rl.epochs and rl.minibatches"


def _no_signal(seen: AlarmWindow) -> str | None:
    now, outcome = seen.readings("zero_spread")[-1], seen.readings(OUTCOME)[-1]
    if now < seen.settings.flat_share or outcome >= SOLVED:
        return None
    return (
        f"the runs of {now:.0%} of the questions are paid all alike, and {outcome:.0%} of them are right: there is "
        "nothing to compare; take easier or harder questions, larger groups, or a reward with more steps"
    )


def _faults(seen: AlarmWindow) -> str | None:
    share = fmean(row["faults"] / row["runs"] for row in seen.recent)
    if share < seen.settings.fault_share:
        return None
    parts = sorted({name.removeprefix(FAULT) for row in seen.recent for name in row if name.startswith(FAULT)})
    return (
        f"{share:.0%} of the runs are left out, as {' and '.join(parts)} failed in them: mend that first; nothing "
        "is learnt from them"
    )


CALM = "take a lower rl.policy.optimiser.lr"

CHECKS = (
    AlarmCheck("no-search", ("search_rate",), _no_search),
    AlarmCheck("no-answer", ("answered",), _no_answer),
    AlarmCheck("endless-search", ("truncated", "searches"), _endless_search),
    AlarmCheck("format-hacking", (OUTCOME, "reward", "valid"), _format_hacking),
    AlarmCheck("likelihood-decay", ("right_shift",), _likelihood_decay),
    AlarmCheck("exploding", ("grad_norm",), _long_gradients),
    AlarmCheck("exploding", ("logprob_gap",), _gap, at_once=True),
    AlarmCheck("exploding", ("kl_old",), _far_steps, at_once=True),
    AlarmCheck("no-signal", ("zero_spread", OUTCOME), _no_signal),
    AlarmCheck("faults", ("faults", "runs"), _faults),
)


class Monitor:
    """Watches one run. All it goes by are the rows as they are written, so a resumed run raises the same alarms."""

    def __init__(self, settings: RlSettings, rows: Iterable[Row], progress: Progress) -> None:
        self._settings, self._progress = settings, progress
        self._rows: list[Row] = list(rows)
        self._window = settings.monitor.window
        self._complained = False
        self.alarms: dict[AlarmName, str] = find_alarms(self._rows, settings) if self._rows else {}
        """What is on now, with advice."""

    def look(self, row: Row) -> dict[str, float]:
        """Take in a step's metrics; says new alarms, and returns what the step's line is to tell of them."""
        self.alarms = find_alarms([*self._rows, row], self._settings)
        recent = self._rows[-self._window :]
        for name, advice in self.alarms.items():
            if not any(f"{ALARM}{name}" in earlier for earlier in recent):
                self._progress.say(f"alarm {name} in step {row['step']:.0f}: {advice}")
        told = {"alarms": float(len(self.alarms)), **{f"{ALARM}{name}": 1.0 for name in self.alarms}}
        self._rows.append({**row, **told})
        self._say_what_is_missing()
        return told

    def stopped(self, healthy: Path) -> MonitorStop:
        """The error of a run that may not go on; `healthy` is where the last healthy checkpoint would be."""
        name, advice = next(iter(self.alarms.items()))
        kept = f"the last healthy checkpoint is {healthy}" if healthy.exists() else "there is no healthy checkpoint yet"
        return MonitorStop(
            f"stopped after step {self._rows[-1]['step']:.0f} by the alarm {name}: {advice}; {kept}; to go on all the "
            "same: --resume rl.monitor.stop=false (of a stage: stages.NAME.rl.monitor.stop=false)"
        )

    def _say_what_is_missing(self) -> None:
        """Once, when a window is full: what is not measured raises no alarm."""
        if self._complained or len(self._rows) < self._window:
            return
        self._complained = True
        for check in checks_of(self._settings):
            names = check.metrics(self._settings.monitor)
            absent = [name for name in names if not any(name in row for row in self._rows)]
            if absent:
                self._progress.say(f"monitor: there is no {' and no '.join(absent)} to watch for {check.alarm}")
