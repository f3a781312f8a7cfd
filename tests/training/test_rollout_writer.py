"""Kept rollouts: what a step leaves on disk, and what keeping it costs a run: nothing of its results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.training.echo import QUESTIONS, fixed, reward, sampling, settings_of, train
from tests.training.tiny import same_weights, tiny_model

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_jsonl
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.token_data import FILE, TokenData, read_token_data
from coseek.data.trajectory import StopReason, Trajectory
from coseek.training.learner.batch import make_batch
from coseek.training.learner.policy import Policy
from coseek.training.learner.workers import ALONE
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.callbacks import Callback, RolloutWriter, StepReport
from coseek.training.rl.loop import train_rl
from coseek.training.rl.rollout import score
from coseek.training.rl.settings import KeepRolloutsSettings, RlSettings


def writer_in(folder: Path, every: int = 2, mb: float = 200.0) -> RolloutWriter:
    settings = KeepRolloutsSettings(every=every, mb=mb)
    return RolloutWriter(folder / "rollouts", settings, lambda step: {"step": step}, ALONE)


def kept_in(folder: Path) -> dict[str, list[JsonObject]]:
    """Step → rows of its trajectories and its token data; without wall time."""
    return {
        path.name: [row for name in ("trajectories.jsonl", FILE) for _, row in read_jsonl(path / name)]
        for path in sorted((folder / "rollouts").iterdir())
    }


def data_of(folder: Path) -> list[tuple[Trajectory, TokenData]]:
    data = read_token_data(folder)
    return [(run, data[run.question.id, run.seed]) for run in Run(folder).trajectories()]


@pytest.mark.medium
def test_the_rollouts_of_every_nth_and_the_last_step_are_kept_as_runs(tmp_path: Path) -> None:
    _, rows = train(tmp_path, settings_of("grpo", steps=5), callbacks=[writer_in(tmp_path)])
    kept = sorted((tmp_path / "rollouts").iterdir())
    assert [path.name for path in kept] == ["step-000002", "step-000004", "step-000005"]
    for path in kept:
        assert len(Run(path).finished_keys()) == len(data_of(path)) == 32
        assert Run(path).settings["step"] == int(path.name[-6:])
    assert [("keep_s" in row) for row in rows] == [False, True, False, True, True]


@pytest.mark.medium
def test_values_stand_at_the_tokens_that_they_were_computed_for(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=1, measure_entropy=True)
    train(tmp_path, settings, callbacks=[writer_in(tmp_path)])
    stored = data_of(tmp_path / "rollouts" / "step-000001")
    before = Policy(tiny_model(3), settings.policy, 0)
    batch = make_batch([run for run, _ in stored])
    logprobs_BT = before.forward(batch, batch.agent_BT)
    compared = 0
    for row, (run, data) in enumerate(stored):
        data.check(run)
        assert data.spans == ((2, 3), (5, 6)) and data.reward == float(run.answer == run.question.id)
        if data.updates is None:
            assert not data.trainer_logprobs and set(data.advantages) == {0.0}  # a group without spread: no pass
            continue
        assert len(data.entropies) == 2 and all(value is not None and 0 < value < 3.2 for value in data.entropies)
        if data.updates == 0:
            compared += 1
            assert data.trainer_logprobs == pytest.approx(logprobs_BT[row, [2, 5]].tolist(), abs=2e-6)
    assert compared
    groups = {data.group for _, data in stored}
    for group in groups:
        assert sum(data.advantages[0] or 0.0 for _, data in stored if data.group == group) == pytest.approx(0, abs=1e-4)


def test_a_recomputed_old_policy_is_the_trainer_before_every_update(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=1, old_logprobs="recompute")
    train(tmp_path, settings, callbacks=[writer_in(tmp_path)])
    stored = data_of(tmp_path / "rollouts" / "step-000001")
    assert {data.updates for _, data in stored} == {0}
    for run, data in stored:
        sampled = [value for segment in run.segments for value in segment.logprobs]
        assert data.trainer_logprobs == pytest.approx(sampled, abs=1e-5)
        assert not data.entropies  # which would cost the trainer's pass more memory


@pytest.mark.slow
def test_keeping_rollouts_changes_no_weight(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=3, kl_coef=0.01)
    plain, _ = train(tmp_path / "plain", settings)
    kept, _ = train(tmp_path / "kept", settings, callbacks=[writer_in(tmp_path / "kept", every=1)])
    assert same_weights(plain, kept)


class Kill(Callback):
    """Ends a run after a step, as a kill would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, report: StepReport) -> None:
        if report.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("mb", [200.0, 0.045])
def test_a_run_that_was_killed_and_resumed_keeps_the_same_rollouts(tmp_path: Path, mb: float) -> None:
    settings = settings_of("grpo", steps=9, checkpoint_every=4, questions_per_step=2)
    train(tmp_path / "whole", settings, callbacks=[writer_in(tmp_path / "whole", 1, mb)])
    for step in (7, 8):
        callbacks = [writer_in(tmp_path / "parts", 1, mb), Kill(step)]
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts", settings, resume=step == 8, callbacks=callbacks)
    (tmp_path / "parts" / "rollouts" / ".step-000008.abcd1234.part").mkdir()
    train(tmp_path / "parts", settings, resume=True, callbacks=[writer_in(tmp_path / "parts", 1, mb)])
    whole = kept_in(tmp_path / "whole")
    assert len(whole) == 9 if mb == 200.0 else 1 < len(whole) < 9
    assert kept_in(tmp_path / "parts") == whole


def test_a_run_in_which_a_part_failed_is_kept_without_values(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=1)
    policy = Policy(tiny_model(3), settings.policy, settings.total_updates)
    runs = sampling(policy)

    def one_fails(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        first, *others = runs(questions, seeds)
        return [replace(first, stop=StopReason.RETRIEVER_ERROR, stop_detail="timed out", answer=None), *others]

    backend = LocalBackend(policy, settings)
    train_rl(backend, QUESTIONS, one_fails, reward, settings, tmp_path, callbacks=[writer_in(tmp_path)])
    folder = tmp_path / "rollouts" / "step-000001"
    data = read_token_data(folder)
    stored = list(Run(folder).trajectories())
    assert len(stored) == 32 and len(data) == 31
    assert [run.stop for run in stored if (run.question.id, run.seed) not in data] == [StopReason.RETRIEVER_ERROR]


def test_groups_that_were_not_trained_on_are_marked(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=1, dynamic_sampling=True, group_size=2)
    train(tmp_path, settings, callbacks=[writer_in(tmp_path)])
    stored = data_of(tmp_path / "rollouts" / "step-000001")
    trained: dict[int, set[float | None]] = {}
    for _, data in stored:
        trained.setdefault(data.group, set()).add(data.reward)
        assert bool(data.spans) == data.trained
    assert {data.group for _, data in stored if data.trained} == {key for key, paid in trained.items() if len(paid) > 1}
    assert any(not data.trained for _, data in stored)


def steps_written(writer: RolloutWriter, steps: int, groups: int = 4) -> None:
    """Call a writer for `steps` steps of `groups` groups of two runs."""
    for step in range(1, steps + 1):
        runs = [replace(fixed(QUESTIONS[at % 4]), seed=at) for at in range(2 * groups)]
        episodes = score([at // 2 for at in range(2 * groups)], runs, reward)
        report = StepReport(step, steps, episodes=episodes)
        writer.before_step(report)
        writer.after_step(report)


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_budget_of_disk_holds_and_what_is_left_is_evenly_spread(tmp_path: Path) -> None:
    steps_written(writer_in(tmp_path / "one", every=1), 1)
    budget = 11 * used(tmp_path / "one") / 1e6
    steps_written(writer_in(tmp_path, every=1, mb=budget), 35)
    left = sorted(int(path.name[-6:]) for path in (tmp_path / "rollouts").iterdir())
    assert used(tmp_path / "rollouts") <= budget * 1e6
    assert left == [4, 8, 12, 16, 20, 24, 28, 32, 34, 35]


def test_one_step_takes_a_tenth_of_the_budget_in_whole_groups(tmp_path: Path) -> None:
    steps_written(writer_in(tmp_path / "all", every=1), 1)
    budget = 5 * used(tmp_path / "all") / 1e6  # a step may take half of what it would
    steps_written(writer_in(tmp_path, every=1, mb=budget), 1)
    run = Run(tmp_path / "rollouts" / "step-000001")
    groups = [data.group for data in read_token_data(run.folder).values()]
    assert groups in ([0, 0], [0, 0, 1, 1])
    assert run.settings["groups"] == len(set(groups)) and run.settings["groups_of_step"] == 4


def test_no_rollouts_are_kept_at_an_interval_of_0(tmp_path: Path) -> None:
    train(tmp_path, settings_of("grpo", steps=2), callbacks=[writer_in(tmp_path, every=0)])
    assert not (tmp_path / "rollouts").exists()


def test_values_of_fewer_tokens_are_refused() -> None:
    with pytest.raises(DataError, match="entropies holds 1 values for 2 tokens"):
        TokenData("4", 0, 0, 1.0, spans=((1, 3),), entropies=(0.5,))


@pytest.mark.medium
def test_keeping_may_change_on_resume(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=1)
    train(tmp_path, settings)
    changed = RlSettings.model_validate({**settings.model_dump(), "steps": 2, "keep_rollouts": {"every": 3}})
    train(tmp_path, changed, resume=True)
