"""Rows for any engine: they hold what the learner trains on, to the last bit, and nothing of what failed."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tests.training.echo import settings_of
from tests.training.tiny import agent, environment, random_trajectories, trajectory

from coseek.core.errors import DataError, SettingError
from coseek.core.files import json_line, parse_line
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import StopReason, Trajectory
from coseek.rewards.reward import Reward
from coseek.training.learner.batch import padded
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.rollout import TrajectoryBatch, score
from coseek.training.rl.rows import TrainingRow, export_rows, read_rows, rows_of
from coseek.training.rl.settings import RlSettings

GROUPS, SIZE = 4, 4
ALGORITHMS = ("grpo", "rloo", "reinforce-pp")


def paid(run: Trajectory) -> Reward:
    """A number drawn by the run's question and seed, often the same for a whole group."""
    rng = random.Random(f"{run.question.id}/{run.seed}")
    return Reward(1.0 if run.question.id == "q0" else rng.choice([0.0, 0.5, 1.0]))


def sampled(seed: int) -> list[Trajectory]:
    """Groups of runs; one in five ran into a limit, one in eight failed."""
    rng = random.Random(seed)
    stops = [StopReason.ANSWERED] * 6 + [StopReason.TOKEN_LIMIT, StopReason.TURN_LIMIT, StopReason.MODEL_ERROR]
    return [
        replace(run, question=Question(f"q{index // SIZE}", "?", ("a",)), seed=index % SIZE, stop=rng.choice(stops))
        for index, run in enumerate(random_trajectories(GROUPS * SIZE, rng))
    ]


def scored(runs: Sequence[Trajectory]) -> TrajectoryBatch:
    return score([int(run.question.id[1:]) for run in runs], runs, paid)


def made(episodes: TrajectoryBatch, choice: RlSettings) -> tuple[Experience, list[TrainingRow]]:
    """The experience of a step, and its rows as a file gives them back."""
    algorithm = open_algorithm(choice)
    experience = make_experience(episodes, choice, algorithm, None)
    rows = rows_of(experience, episodes, choice, algorithm)
    return experience, [TrainingRow.from_json(parse_line(json_line(row.to_json()), "row")) for row in rows]


@settings(max_examples=at_most(40), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    algorithm=st.sampled_from(ALGORITHMS),
    truncated=st.sampled_from(["keep", "mask", "penalise"]),
    loss_agg_mode=st.sampled_from(["token-mean", "seq-mean-token-mean", "group-mean"]),
)
def test_the_batch_of_a_step_can_be_made_of_its_rows(
    seed: int, algorithm: str, truncated: str, loss_agg_mode: str
) -> None:
    choice = settings_of(algorithm, group_size=SIZE, truncated=truncated, loss_agg_mode=loss_agg_mode)
    experience, rows = made(scored(sampled(seed)), choice)
    assert [len(row.ids) for row in rows] == experience.batch.lengths_B.tolist()
    assert torch.equal(padded(row.ids for row in rows), experience.batch.ids_BT)
    assert torch.equal(padded(row.trained for row in rows), experience.mask_BT)
    assert torch.equal(padded(row.sampled_logprob for row in rows), experience.old_BT)
    assert torch.equal(padded(row.advantage for row in rows), experience.advantages_BT)
    assert [row.group for row in rows] == experience.groups_B.tolist()
    assert [row.policy_version for row in rows] == experience.sampled_at_B.tolist()
    trained = [row for row in rows if any(row.trained)]
    assert sum(row.weight * sum(row.trained) for row in trained) == pytest.approx(1.0 if trained else 0.0)
    assert all(row.weight == 0.0 for row in rows if row not in trained)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_run_that_failed_is_in_no_row_and_in_no_baseline(seed: int) -> None:
    runs = sampled(seed)
    kept = [run for run in runs if not run.stop.is_fault]
    choice = settings_of("grpo", group_size=SIZE)
    rows = made(scored(runs), choice)[1]
    assert rows == made(scored(kept), choice)[1]
    assert [row.episode for row in rows] == [f"{run.question.id}/{run.seed}" for run in kept]


def test_a_row_has_the_oldest_version_of_the_weights_that_sampled_it() -> None:
    written = [replace(agent(2, 3), version=7), environment(4), replace(agent(5), version=6)]
    run = trajectory(environment(1), *written, question="q1")
    choice = settings_of("grpo", group_size=1)
    (row,) = made(scored([run]), choice)[1]
    assert (row.policy_version, row.turn, row.step) == (6, 1, 0)
    assert row.trained == (False, True, True, False, True)
    plain = [replace(segment, version=None) for segment in run.segments]
    assert made(scored([replace(run, segments=tuple(plain))]), choice)[1][0].policy_version == 0


# --- stored runs


def stored(folder: Path, runs: Sequence[Trajectory]) -> Run:
    run = Run.create(folder / "run", {})
    with run.open_for_append() as file:
        for trajectory in runs:
            run.append(file, trajectory)
    return run


def test_a_stored_run_is_exported_step_by_step_whatever_the_order_of_its_lines(tmp_path: Path) -> None:
    choice = settings_of("grpo", group_size=SIZE, questions_per_step=3)
    runs = sampled(1)
    by_seed = sorted(runs, key=lambda run: (run.seed, run.question.id))  # all first runs, then all second ones
    run = stored(tmp_path, by_seed)
    export = export_rows(run, paid, choice)
    rows = list(read_rows(export.path))
    assert export.path == run.folder / "rows.jsonl" and export.rows == len(rows)
    assert export.faults == sum(trajectory.stop.is_fault for trajectory in runs) > 0
    expected = []
    for step, half in enumerate((runs[: 3 * SIZE], runs[3 * SIZE :])):
        expected += [replace(row, step=step) for row in made(scored(half), choice)[1]]
    assert rows == expected


def test_groups_without_spread_are_left_out_where_they_are_resampled_or_dropped(tmp_path: Path) -> None:
    run = stored(tmp_path, sampled(1))
    for changes in ({"dynamic_sampling": True}, {"algorithm_settings": {"zero_std_groups": "drop"}}):
        choice = settings_of("grpo", group_size=SIZE, **changes)
        trained = {row.group for row in read_rows(export_rows(run, paid, choice).path) if any(row.trained)}
        assert trained and 0 not in trained


def test_settings_that_need_a_model_are_refused_for_stored_runs(tmp_path: Path) -> None:
    alone = [trajectory for trajectory in sampled(1) if trajectory.seed == 0]
    alone[0] = replace(alone[0], stop=StopReason.RETRIEVER_ERROR)
    run = stored(tmp_path, alone)
    with pytest.raises(SettingError, match="no critic, which ppo needs"):
        export_rows(run, paid, settings_of("ppo"))
    with pytest.raises(SettingError, match="no reference policy; set kl_coef=0"):
        export_rows(run, paid, settings_of("grpo", kl_coef=0.1, kl_location="reward"))
    with pytest.raises(DataError, match=r"grpo compares the runs of a question, and .* has one of each"):
        export_rows(run, paid, settings_of("grpo"))
    assert not (run.folder / "rows.jsonl").exists()
    assert export_rows(run, paid, settings_of("reinforce-pp", group_size=1)).rows > 0


def test_a_broken_row_is_named_by_its_line(tmp_path: Path) -> None:
    row = TrainingRow((1, 2, 3), (False, True, True), (0.0, -1.0, -2.0), (0.0, 0.5, 0.5), 0.5, 0, 0, "q/1", 1, 0)
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json_line(row.to_json())}{json.dumps(row.to_json() | {'schema': 2})}\n")
    rows = read_rows(path)
    assert next(rows) == row
    with pytest.raises(DataError, match=r"rows.jsonl, line 2: .*a row of schema 2"):
        next(rows)
