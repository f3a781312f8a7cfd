"""Alarms come when a run collapses, and never from noise; they are functions of the metrics alone."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tests.training.echo import QUESTIONS, sampling, settings_of
from tests.training.tiny import tiny_model
from tests.watching import Heard

from coseek.core.errors import RunError
from coseek.data.question import Question
from coseek.data.trajectory import Search, Trajectory
from coseek.rewards.reward import Reward
from coseek.training.learner.checkpoint import SCHEMA, CheckpointTensors, keep_healthy, load_healthy
from coseek.training.learner.policy import Policy
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.callbacks import QUIET_STEPS, LearnsNothing, StepReport
from coseek.training.rl.loop import train_rl
from coseek.training.rl.monitor import Monitor, MonitorStop, find_alarms
from coseek.training.rl.rollout import RolloutFunction
from coseek.training.rl.settings import MonitorSettings, RlSettings

LEVELS = {"search_rate": 0.95, "answered": 0.97, "truncated": 0.03, "valid": 0.95, "exact_match": 0.4}
USUAL = {
    "searches": 1.8, "frac_reward_zero_std": 0.35, "grad_norm": 0.1, "kl_old": 1e-4, "logprob_gap": 1e-3,
    "right_shift": 2e-3, "trajectories": 256.0, "faults": 0.0,
}  # fmt: skip
SETTINGS = RlSettings()


def row(**changes: float) -> dict[str, float]:
    made = LEVELS | USUAL | changes
    return {"reward": made["exact_match"], **made}


def history(**ends: float) -> list[dict[str, float]]:
    """Ten healthy rows, then ten in which the named metrics go to where they end."""
    start = row(**dict.fromkeys(ends.keys() - row().keys(), 0.0))
    moving = [{name: start[name] + (end - start[name]) * step / 10 for name, end in ends.items()} for step in range(11)]
    return [row()] * 10 + [start | moved for moved in moving] + [start | ends] * 5


def alarms(rows: list[dict[str, float]], **health: object) -> list[str]:
    return sorted(find_alarms(rows, RlSettings(monitor=MonitorSettings.model_validate(health))))


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        ({"search_rate": 0.1, "searches": 0.1}, "no-search"),
        ({"answered": 0.3}, "no-answer"),
        ({"truncated": 0.7, "searches": 4.5}, "endless-search"),
        ({"valid": 1.0, "exact_match": 0.1, "reward": 0.6}, "format-hacking"),
        ({"right_shift": -0.02}, "likelihood-decay"),
        ({"grad_norm": 20.0}, "exploding"),
        ({"logprob_gap": 0.5}, "exploding"),
        ({"kl_old": 0.5}, "exploding"),
        ({"frac_reward_zero_std": 1.0}, "no-signal"),
    ],
)
def test_each_collapse_raises_its_alarm_alone_and_advises(ends: dict[str, float], named: str) -> None:
    raised = find_alarms(history(**ends), SETTINGS)
    assert list(raised) == [named]
    assert any(character.isdigit() for character in raised[named]), "the advice names the values"  # type: ignore[index]


@pytest.mark.parametrize(
    "ends",
    [
        {
            "exact_match": 0.9,
            "reward": 0.9,
            "frac_reward_zero_std": 1.0,
        },  # solved: nothing left to learn, and rightly so
        {"searches": 1.0},  # one search where there were two
        {"answered": 0.5, "declined": 0.45},  # it learnt to decline
        {"truncated": 0.5, "searches": 0.5},  # cut off while writing, not while searching
        {"exact_match": 0.1, "reward": 0.1},  # it gets worse, but is not rewarded for it
        {"exact_match": 0.1, "reward": 0.6},  # rewarded for something other than the format
    ],
)
def test_what_only_looks_like_a_collapse_raises_no_alarm(ends: dict[str, float]) -> None:
    assert alarms(history(**ends)) == []


def test_a_single_spike_is_no_explosion() -> None:
    """Seen in a healthy run: one gradient of 0.75 among gradients of 0.1; here far worse ones, every fourth step."""
    rows = [row(grad_norm=50.0 if step % 4 == 3 else 0.1) for step in range(40)]
    assert alarms(rows) == []


def test_a_protocol_without_answers_raises_no_alarm_for_missing_answers() -> None:
    assert alarms([row(answered=0.0, exact_match=0.0, valid=1.0) for _ in range(30)]) == []


def test_groups_of_one_are_alike_by_nature() -> None:
    rows = [row(frac_reward_zero_std=1.0)] * 10
    assert list(find_alarms(rows, RlSettings(group_size=1, questions_per_step=256))) == []
    assert alarms(rows) == ["no-signal"] and alarms(rows, ignore=["no-signal"]) == []


@pytest.mark.parametrize("name", ["ppo", "reinforce-pp", "igpo"])
def test_an_algorithm_that_learns_from_equal_rewards_raises_no_alarm_for_them(name: str) -> None:
    assert find_alarms([row(frac_reward_zero_std=1.0)] * 10, RlSettings(algorithm=name)) == {}


def test_the_outcome_can_be_another_metric() -> None:
    """s3 gives no answer, so its strict EM is 0 however well it does."""
    rows = [row | {"exact_match": 0.0, "reward/gen_acc": row["exact_match"]} for row in history(exact_match=0.1)]
    hacked = [row | {"reward": 0.5 + number / 100, "valid": 0.5 + number / 60} for number, row in enumerate(rows)]
    assert alarms(hacked) == [] and alarms(hacked, outcome="reward/gen_acc") == ["format-hacking"]


@st.composite
def noisy_runs(draw: st.DrawFn) -> list[dict[str, float]]:
    """Two hundred steps of 32 questions × 8 runs whose levels stand still or improve: all that moves is noise.

    A question's runs share their luck: half of the questions go well or badly as a whole, so a step's mean jumps as it
    does in the logs of real runs (± .08 at a mean of .4).
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    levels = {name: draw(st.floats(0.05, 0.98), label=name) for name in LEVELS}
    gain = draw(st.floats(0.0, 0.3))
    weight = draw(st.sampled_from([0.0, 0.2, 0.5]))

    def mean(level: float) -> float:
        shared = sum(8 * (rng.random() < level) for _ in range(16))
        return (shared + sum(rng.random() < level for _ in range(128))) / 256

    rows = []
    for step in range(200):
        risen = {name: min(1.0, level + gain * step / 200) for name, level in levels.items() if name != "truncated"}
        drawn = {name: mean(level) for name, level in (risen | {"truncated": 0.5 * levels["truncated"]}).items()}
        usual = {name: value * rng.lognormvariate(0.0, 0.3) for name, value in USUAL.items()}
        usual["frac_reward_zero_std"] = min(0.9, usual["frac_reward_zero_std"])
        usual["right_shift"] = rng.gauss(0.0, 3e-3)
        reward = (1.0 - weight) * drawn["exact_match"] + weight * drawn["valid"]
        rows.append({**usual, **drawn, "reward": reward})
    return rows


@pytest.mark.slow
@settings(max_examples=12)
@given(noisy_runs())
def test_noise_around_any_level_raises_no_alarm_in_two_hundred_steps(rows: list[dict[str, float]]) -> None:
    # Every alarm looks at its window's mean, so a look once a window is enough to find one that noise could raise.
    for step in range(5, 201, 5):
        assert find_alarms(rows[:step], SETTINGS) == {}


def test_a_metric_that_is_missing_raises_no_alarm_and_is_named_once() -> None:
    progress = Heard()
    health = Monitor(SETTINGS, [], progress)
    for step in range(20):
        written = health.update({"step": step + 1, "search_rate": 0.9, "truncated": 0.0, "searches": 1.0})
        assert written == {"alarms": 0.0}
    assert "monitor: no metric answered, so alarm no-answer cannot be raised" in progress.lines
    assert len(progress.lines) == len(set(progress.lines)) and not any("no-search" in line for line in progress.lines)


def test_a_new_alarm_is_reported_once_and_logged_while_it_lasts() -> None:
    progress = Heard()
    health = Monitor(SETTINGS, [], progress)
    told = [health.update({**row, "step": step + 1}) for step, row in enumerate(history(answered=0.3))]
    assert told[-1] == {"alarms": 1.0, "alarm/no-answer": 1.0} and told[9] == {"alarms": 0.0}
    assert len(progress.lines) == 1 and "alarm no-answer in step" in progress.lines[0]


# --- real runs


def test_parts_that_fail_for_good_are_an_alarm_and_no_healthy_run() -> None:
    """Such steps have no other metric, so that nothing else could notice."""
    dead: dict[str, float] = {"trajectories": 64.0, "faults": 64.0, "faults/retriever_error": 64.0}
    advice = find_alarms([row(trajectories=64.0, faults=2.0)] * 20 + [dead] * 4, SETTINGS)["faults"]
    assert "81% of the runs" in advice and "retriever_error failed" in advice
    assert alarms([row(trajectories=64.0, faults=20.0)] * 20) == []


def small(**health: object) -> RlSettings:
    """Steps in which the policy unlearns to search."""
    monitor = {"window": 3, **health}
    return settings_of("grpo", questions_per_step=8, group_size=4, checkpoint_every=1, monitor=monitor)


def searching(policy: Policy) -> RolloutFunction:
    """Runs of the echo task in which most first tokens stand for a search."""
    runs = sampling(policy)

    def run(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        return [
            replace(trajectory, searches=(Search("?", turn=1),) if trajectory.segments[1].ids[0] < 20 else ())
            for trajectory in runs(questions, seeds)
        ]

    return run


def train(plan: RlSettings, folder: Path, resume: bool = False) -> Policy:
    policy = Policy(tiny_model(3), plan.policy, plan.total_updates)
    pay: Callable[..., Reward] = lambda run: Reward(-float(len(run.searches)))  # noqa: E731
    train_rl(LocalBackend(policy, plan), QUESTIONS, searching(policy), pay, plan, folder, resume=resume)
    return policy


def read(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_a_run_that_may_stop_does_and_its_last_healthy_policy_can_be_loaded(tmp_path: Path) -> None:
    plan = small(stop=True, ignore=["likelihood-decay", "no-signal"]).model_copy(update={"steps": 40})
    with pytest.raises(
        MonitorStop, match=r"alarm no-search: .*healthy checkpoint is .*rl\.monitor\.stop=false"
    ) as stop:
        train(plan, tmp_path)
    assert isinstance(stop.value, RunError)
    rows = read(tmp_path / "metrics.jsonl")
    assert rows[-1]["alarm/no-search"] == 1 and not any(row["alarms"] for row in rows[:-1])
    again = Policy(tiny_model(), plan.policy, plan.total_updates)
    like: CheckpointTensors = {"learners": {"policy": again.state()}, "frozen": {}}
    kept = load_healthy(tmp_path / "checkpoints", like)
    assert kept is not None and 0 < kept["step"] <= len(rows) - 3
    again.load_state(kept["learners"]["policy"])
    looked = searching(again)(QUESTIONS * 8, range(32))
    assert sum(bool(run.searches) for run in looked) > 0.6 * len(looked)  # not yet what the alarm was about

    # A resume alone does not continue past the alarm.
    with pytest.raises(MonitorStop, match="stopped after step"):
        train(plan, tmp_path, resume=True)
    assert len(read(tmp_path / "metrics.jsonl")) == len(rows)

    # With stop=false the training continues from where it stopped, and the healthy checkpoint stays.
    train(small().model_copy(update={"steps": len(rows) + 2}), tmp_path, resume=True)
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == list(range(1, len(rows) + 3))
    still = load_healthy(tmp_path / "checkpoints", like)
    assert still is not None and still["step"] == kept["step"]


def test_a_resumed_run_raises_the_same_alarms_and_reports_none_again() -> None:
    rows = [{**row, "step": step} for step, row in enumerate(history(answered=0.3), start=1)]
    began = Monitor(SETTINGS, [], Heard())
    logged = [row | began.update(row) for row in rows]
    resumed = Monitor(SETTINGS, logged[:22], progress := Heard())
    assert resumed.alarms
    assert [row | resumed.update(row) for row in rows[22:]] == logged[22:]
    assert progress.lines == []


def test_a_checkpoint_is_healthy_when_steps_without_an_alarm_followed_it(tmp_path: Path) -> None:
    """And outlives the one that it came from: only the last two are kept."""

    def written(step: int, alarm: bool = False) -> int | None:
        folder = tmp_path / f"step-{step:06d}"
        folder.mkdir(exist_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"schema": SCHEMA, "step": step}))
        for _ in range(2):  # a resumed run decides again
            keep_healthy(tmp_path, step, alarm, patience=5)
        shutil.rmtree(folder)
        kept = tmp_path / "healthy" / "manifest.json"
        return int(json.loads(kept.read_text())["step"]) if kept.exists() else None

    assert [written(step) for step in (3, 6, 9, 12, 15)] == [None, None, 3, 3, 9]
    assert written(18, alarm=True) == 9  # 15 was waiting, and is not to be trusted
    assert [written(step) for step in (21, 24, 27)] == [9, 9, 21]
    assert load_healthy(tmp_path, {"learners": {}, "frozen": {}}) is None  # its files are missing


def heard(settings: RlSettings, *rows: dict[str, float]) -> list[str]:
    progress = Heard()
    watch = LearnsNothing(open_algorithm(settings), settings, progress)
    watch.begin()
    for step, row in enumerate(rows, start=1):
        watch.after_step(StepReport(step, len(rows), row))
    return progress.warned


def test_groups_of_one_run_are_warned_of_if_runs_are_compared() -> None:
    [warning] = heard(RlSettings(group_size=1))
    assert warning.startswith("rl.group_size=1") and "rl.algorithm=reinforce-pp" in warning
    assert not heard(RlSettings(group_size=1, algorithm="ppo"))
    assert not heard(RlSettings(group_size=2))


def test_steps_without_a_gradient_are_reported_once_until_a_step_has_one() -> None:
    flat, dropped = {"updates": 2.0, "grad_norm": 0.0, "reward": 0.0}, {"updates": 0.0, "reward": 0.0}
    moved = {"updates": 2.0, "grad_norm": 0.1}
    assert not heard(RlSettings(), *[flat] * (QUIET_STEPS - 1), moved, flat)
    assert len(heard(RlSettings(), *[dropped] * (3 * QUIET_STEPS))) == 1
    assert len(heard(RlSettings(), *[flat] * QUIET_STEPS, moved, *[dropped] * QUIET_STEPS)) == 2
