"""The RL loop on the echo task: answer with the token that the prompt shows."""

import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from tests.training.echo import QUESTIONS, experience_of, fixed, reward, settings_of, train
from tests.training.tiny import agent, environment, same_weights, tiny_model

from coseek.core.errors import DataError, SettingError
from coseek.data.question import Question
from coseek.data.trajectory import StopReason
from coseek.training.learner.data_order import QuestionStream, derive_seed
from coseek.training.learner.policy import Policy
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.loop import train_rl
from coseek.training.rl.rollout import RolloutFunction, collect, rollout_metrics, score


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_reward_rises(tmp_path: Path, algorithm: str) -> None:
    _, rows = train(tmp_path, settings_of(algorithm))
    assert sum(row["reward"] for row in rows[-3:]) / 3 > 0.35 > 0.15 > rows[0]["reward"]
    assert [row["step"] for row in rows] == list(range(1, 16))


@pytest.mark.medium
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_step_logs_its_metrics(tmp_path: Path, algorithm: str) -> None:
    changes = {"steps": 1, "kl_coef": 0.01, "kl_location": "loss" if algorithm == "grpo" else "reward"}
    _, (row,) = train(tmp_path, settings_of(algorithm, **changes))
    for name in (
        "reward", "reward/exact_match", "exact_match", "answered", "declined", "valid", "truncated", "searches",
        "tokens", "agent_tokens",
        "faults",
        "frac_reward_zero_std", "updates", "loss", "grad_norm", "ratio_max", "clip_frac", "kl_old", "kl_reference",
        "logprob_gap", "sampled_nll", "staleness", "staleness_max", "lr",
        "rollout_s", "reward_s", "advantages_s", "update_s",
    ):  # fmt: skip
        assert name in row, name
    assert row["logprob_gap"] < 1e-5  # sampler and trainer are the same network here
    assert row["kl_old"] >= 0 and row["updates"] == 2
    assert ("value_loss" in row) is (algorithm == "ppo")


class Presses(Callback):
    """Presses Ctrl-C in the second step."""

    def after_step(self, report: StepReport) -> None:
        if report.step == 2:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.medium
def test_ctrl_c_loses_no_step_though_no_checkpoint_was_due(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=4, checkpoint_every=100)
    whole, rows = train(tmp_path / "whole", settings)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts", settings, callbacks=[Presses()])
    parts, again = train(tmp_path / "parts", settings, resume=True)
    assert [row["step"] for row in again] == [row["step"] for row in rows] == [1, 2, 3, 4]
    assert same_weights(whole, parts)


@pytest.mark.medium
def test_rows_logged_after_the_checkpoint_are_removed_on_resume(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=2)
    train(tmp_path, settings)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    _, rows = train(tmp_path, settings.model_copy(update={"steps": 3}), resume=True)
    assert [row["step"] for row in rows] == [1, 2, 3]


@pytest.mark.medium
def test_a_folder_with_a_training_is_not_overwritten(tmp_path: Path) -> None:
    train(tmp_path, settings_of("grpo", steps=1))
    with pytest.raises(DataError, match="go on with it with --resume"):
        train(tmp_path, settings_of("grpo", steps=1))
    with pytest.raises(SettingError, match=r"begun with clip_ratio_low = 0\.2, and now 0\.1"):
        train(tmp_path, settings_of("grpo", steps=1, clip_ratio_low=0.1), resume=True)


def test_two_occurrences_of_a_question_are_two_groups() -> None:
    """Trap 11: neither the question's id nor its place in a data set is the group."""
    questions = [QUESTIONS[0], QUESTIONS[0], QUESTIONS[1]]
    groups, runs = collect(questions, 2, range(6), lambda questions, _: [fixed(question) for question in questions])
    assert groups == [0, 0, 1, 1, 2, 2]
    assert score(groups, runs, reward).rows_by_group() == {0: [0, 1], 1: [2, 3], 2: [4, 5]}


def test_a_rollout_with_other_questions_is_an_error() -> None:
    with pytest.raises(ValueError, match="not those of the 2 questions"):
        collect(QUESTIONS[:1], 2, [1, 2], lambda questions, _: [fixed(QUESTIONS[1])] * len(questions))


def test_a_run_in_which_a_part_failed_is_counted_and_touches_no_group() -> None:
    broken = fixed(QUESTIONS[0], StopReason.RETRIEVER_ERROR, right=False)
    runs = [fixed(QUESTIONS[0]), fixed(QUESTIONS[0]), broken, fixed(QUESTIONS[1]), fixed(QUESTIONS[1], right=False)]
    episodes = score([0, 0, 0, 1, 1], runs, reward)
    described = rollout_metrics(episodes)
    assert described["trajectories"] == 5 and described["faults"] == 1 and described["faults/retriever_error"] == 1
    assert described["reward"] == 0.75
    experience = experience_of(runs, [0, 0, 0, 1, 1], settings_of("grpo", group_size=3))
    assert experience.advantages_BT[:, 1].tolist() == [0.0, 0.0, 1.0, -1.0]
    assert experience.frac_reward_zero_std == 0.5 and experience.zero_grad_B.tolist() == [True, True, False, False]


def test_the_noise_of_a_kl_in_the_reward_is_no_spread() -> None:
    """Divided by its own standard deviation it would weigh as much as right against wrong."""
    runs = [replace(fixed(QUESTIONS[0]), segments=(environment(1), agent(2 + at, 3))) for at in range(2)]
    settings = settings_of("grpo", group_size=2, kl_coef=0.001, kl_location="reward")
    reference = Policy(tiny_model(4), settings.policy, 1)  # which differs from the policy
    experience = experience_of(runs, [0, 0], settings, reference)
    assert experience.frac_reward_zero_std == 1.0 and not experience.advantages_BT.any()
    unscaled = settings.model_copy(update={"algorithm_settings": {"scale_by_std": False}})
    assert 0.0 < experience_of(runs, [0, 0], unscaled, reference).advantages_BT.abs().max() < 0.01


def test_every_epoch_brings_every_question_once_wherever_it_is_cut() -> None:
    order = QuestionStream(QUESTIONS, seed=1)
    stream = order.take(0, 12)
    assert [sorted(question.id for question in stream[at : at + 4]) for at in (0, 4, 8)] == [["4", "5", "6", "7"]] * 3
    assert order.take(5, 6) == stream[5:11]
    assert stream[:4] != stream[4:8] or stream[4:8] != stream[8:]
    with pytest.raises(DataError, match="no questions"):
        QuestionStream([], 0)


@given(st.integers(0, 200), st.integers(1, 40))
def test_a_step_with_balanced_hops_forgets_no_long_question(position: int, count: int) -> None:
    hops = [1] * 20 + [2] * 9 + [4] * 2 + [None]
    questions = [Question(str(number), "?", hops=hop_count) for number, hop_count in enumerate(hops)]
    order = QuestionStream(questions, 1, balance_hops=True)
    taken = order.take(position, count)
    shares = Counter(question.hops for question in taken)
    assert max(shares.values()) - min(shares[hop_count] for hop_count in (1, 2, 4, None)) <= 1
    assert taken == [order.take(index, 1)[0] for index in range(position, position + count)]
    assert {question.id for question in order.take(0, 4 * 20)} == {question.id for question in questions}


def test_neighbouring_places_get_unrelated_seeds() -> None:
    seeds = {derive_seed(run, "rollout", step, index) for run in range(3) for step in range(10) for index in range(10)}
    assert len(seeds) == 300 and all(0 <= seed < 2**63 for seed in seeds)


def test_a_step_in_which_everything_failed_is_recorded_and_changes_no_weight(tmp_path: Path) -> None:
    settings = settings_of("grpo", steps=1)
    policy = Policy(tiny_model(), settings.policy, 2)
    before = {name: weight.clone() for name, weight in policy.module.state_dict().items()}
    broken: RolloutFunction = lambda questions, _: [fixed(question, StopReason.MODEL_ERROR) for question in questions]  # noqa: E731
    last = train_rl(LocalBackend(policy, settings), QUESTIONS, broken, reward, settings, tmp_path)
    assert last["faults"] == 32 and last["updates"] == 0 and "reward" not in last
    for name, weight in policy.module.state_dict().items():
        assert torch.equal(weight, before[name])
