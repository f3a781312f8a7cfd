"""RLOO, REINFORCE++, resampling, overlong runs, entropy, staleness: each by hand, then in the loop."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.digests import timeless
from tests.examples_drawn import at_most
from tests.training.echo import QUESTIONS, experience_of, fixed, sampling, settings_of, train
from tests.training.tiny import agent, environment, tiny_model, trajectory

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.rewards.reward import Reward
from coseek.training.learner.data_order import QuestionStream
from coseek.training.learner.logprobs import entropies, target_logprobs
from coseek.training.learner.policy import Policy
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.experience import make_experience
from coseek.training.rl.loop import train_rl
from coseek.training.rl.losses import leave_one_out, rewards_to_come
from coseek.training.rl.rollout import (
    FailedTrajectory,
    SampledStep,
    ScoredTrajectory,
    TrajectoryBatch,
    add_overlong_penalty,
    overlong_penalty,
    rollout_metrics,
    rollout_seeds,
    sample_step,
)
from coseek.training.rl.settings import OverlongSettings, RlSettings
from coseek.training.tracker import Timer

groups = st.lists(st.floats(-5, 5, allow_nan=False, width=32), min_size=2, max_size=9)


@given(groups)
def test_each_run_is_compared_with_the_mean_of_the_others(values: list[float]) -> None:
    advantages = leave_one_out(torch.tensor(values)).tolist()
    for index, value in enumerate(values):
        others = [other for at, other in enumerate(values) if at != index]
        expected = value - sum(others) / len(others) if max(values) - min(values) > 1e-6 else 0.0
        assert advantages[index] == pytest.approx(expected, abs=1e-5)


def test_the_return_of_a_token_passes_over_what_the_environment_wrote() -> None:
    mask_BT = torch.tensor([[False, True, False, True, True, False]])
    rewards_BT = torch.tensor([[9.0, 1.0, 9.0, 2.0, 4.0, 9.0]])
    returns = rewards_to_come(rewards_BT, mask_BT, gamma=0.5)
    assert returns.tolist() == [[0.0, 1.0 + 0.5 * (2.0 + 0.5 * 4.0), 0.0, 2.0 + 0.5 * 4.0, 4.0, 0.0]]


def test_reinforce_plus_plus_whitens_over_all_policy_tokens_of_the_step() -> None:
    long = Trajectory(
        QUESTIONS[0], "test", (environment(1), agent(2, 3), environment(9), agent(4)), (), StopReason.ANSWERED, "no",
        True,
    )  # fmt: skip
    experience = experience_of([fixed(QUESTIONS[0]), long], [0, 0], settings_of("reinforce-pp"))
    # Two tokens with reward 1 and three with 0: mean 0.4, variance 0.4 · 0.6.
    assert experience.advantages_BT[0, 1].item() == pytest.approx(0.6 / math.sqrt(0.24), abs=1e-5)
    assert experience.advantages_BT[1].tolist() == pytest.approx(
        [0, *[-0.4 / math.sqrt(0.24)] * 2, 0, -0.4 / math.sqrt(0.24)]
    )
    plain = settings_of("reinforce-pp", algorithm_settings={"whiten": False, "gamma": 0.5})
    assert experience_of([replace(long, answer=QUESTIONS[0].id)], [0], plain).advantages_BT[0].tolist() == [
        0, 0.25, 0.5, 0, 1,
    ]  # fmt: skip


RESAMPLING = settings_of(
    "grpo", questions_per_step=2, group_size=2, dynamic_sampling=True, dynamic_sampling_max_factor=2
)


def untrained() -> LocalBackend:
    return LocalBackend(Policy(tiny_model(), RESAMPLING.policy, 1), RESAMPLING)


def resampled(groups_of_rewards: Sequence[Sequence[float | None]]) -> SampledStep:
    """A step of two questions, group size two, whose groups get these rewards in the order of sampling; `None` is a
    fault."""
    stream = iter([value for group in groups_of_rewards for value in group])

    def reward(trajectory: Trajectory) -> Reward | None:
        value = next(stream)
        return None if value is None else Reward(value)

    def rollout(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        return [replace(fixed(question), seed=seed) for question, seed in zip(questions, seeds, strict=True)]

    order = QuestionStream(QUESTIONS, 0)
    backend = untrained()
    backend.policy.optimizer.updates_done = 7
    return sample_step(3, order, 0, RESAMPLING, rollout, reward, backend, Timer())


def test_groups_without_spread_are_replaced_until_the_step_is_full() -> None:
    sampled = resampled([[1, 1], [0, 1], [0, 0], [1, 0]])
    assert [episode.reward.value for episode in sampled.kept.scored] == [0, 1, 1, 0]
    assert len(sampled.episodes.scored) == 8 and sampled.questions == 4 and sampled.dropped == 2
    assert sampled.metrics() == {"questions": 4, "groups_dropped": 2, "frac_reward_zero_std": 0.5}
    assert rollout_metrics(sampled.episodes)["reward"] == pytest.approx(0.5)  # of all runs, not of those with spread
    assert {episode.sampled_at for episode in sampled.kept.scored} == {7}
    questions = [episode.trajectory.question for episode in sampled.episodes.scored][::2]
    assert questions == QuestionStream(QUESTIONS, 0).take(0, 4)
    assert len({episode.trajectory.seed for episode in sampled.episodes.scored}) == 8
    experience = make_experience(sampled.kept, RESAMPLING, open_algorithm(RESAMPLING), untrained())
    assert not experience.zero_grad_B.any() and experience.singleton_groups == 0


def test_resampling_ends_at_its_limit_with_the_groups_that_have_spread() -> None:
    sampled = resampled([[1, 1], [0, 1], [0, 0], [1, 1]])
    assert len(sampled.kept.scored) == 2 and sampled.questions == 4 and sampled.dropped == 3


def test_a_step_whose_first_groups_have_spread_takes_no_further_questions() -> None:
    sampled = resampled([[1, 0], [0, 1]])
    assert sampled.questions == 2 and sampled.dropped == 0 and sampled.kept.scored == sampled.episodes.scored


def test_a_group_that_faults_emptied_is_replaced_and_not_called_one_without_spread() -> None:
    sampled = resampled([[1, None], [None, None], [0, 0], [1, 0]])
    assert sampled.metrics() == {"questions": 4, "groups_dropped": 1, "frac_reward_zero_std": 0.25}
    assert [episode.reward.value for episode in sampled.kept.scored] == [1, 0]


@pytest.mark.slow
def test_resampling_is_resumed_at_the_question_it_had_come_to(tmp_path: Path) -> None:
    choice = settings_of("grpo", steps=4, checkpoint_every=1, dynamic_sampling=True, group_size=3)
    _, rows = train(tmp_path / "whole", choice)
    train(tmp_path / "parts", choice.model_copy(update={"steps": 2}))
    _, again = train(tmp_path / "parts", choice, resume=True)
    assert any(row["questions"] > choice.questions_per_step for row in rows)
    assert list(map(timeless, rows)) == list(map(timeless, again))


def test_a_step_in_which_nothing_has_spread_still_compares_sampler_and_trainer(tmp_path: Path) -> None:
    choice = settings_of("grpo", steps=1, dynamic_sampling=True)
    policy = Policy(tiny_model(3), choice.policy, choice.total_updates)
    last = train_rl(LocalBackend(policy, choice), QUESTIONS, sampling(policy), lambda _: Reward(1.0), choice, tmp_path)
    assert (
        last["updates"] == 0
        and last["frac_reward_zero_std"] == 1.0
        and last["questions"] == 12
        and last["logprob_gap"] < 1e-5
    )


def test_every_row_of_every_step_of_every_training_has_a_seed_of_its_own() -> None:
    seeds = [
        seed
        for training in range(2)
        for step in range(2)
        for first in (0, 3)
        for seed in rollout_seeds(step, first, 3, settings_of("grpo", seed=training, group_size=2))
    ]
    assert len(seeds) == len({*seeds}) == 48


def test_resampling_needs_runs_to_compare() -> None:
    with pytest.raises(SettingError, match="give a group_size above 1"):
        make_settings(RlSettings, {"dynamic_sampling": True, "group_size": 1})


def test_metrics_of_a_step_are_means_over_its_runs_and_a_search_of_the_protocol_is_none_of_the_agents() -> None:
    question = Question("q", "?", ("Ada",))
    right = trajectory(environment(1), agent(2, 3), answer="ada")
    silent = trajectory(environment(1, 4), agent(2), answer=None)
    runs = [
        replace(right, question=question, searches=tuple(Search("x", turn=turn) for turn in range(3))),
        replace(silent, question=question, searches=(Search("x", turn=0),)),
        replace(silent, question=Question("r", "?")),
    ]
    failed = [FailedTrajectory(0, silent, "model_error")] * 2
    scored = [ScoredTrajectory(0, run, Reward(value, {})) for run, value in zip(runs, (0.5, 1.0, 0.0), strict=True)]
    third = {"answered": 1, "declined": 0, "valid": 1, "truncated": 0, "searches": 4, "search_rate": 1, "tokens": 9,
             "agent_tokens": 4, "reward": 1.5}  # fmt: skip
    assert rollout_metrics(TrajectoryBatch(tuple(scored), tuple(failed))) == pytest.approx(
        {name: total / 3 for name, total in third.items()}
        | {"trajectories": 5, "faults": 2, "faults/model_error": 2, "exact_match": 0.5}
    )
    assert "exact_match" not in rollout_metrics(TrajectoryBatch((scored[2],)))


@pytest.mark.parametrize(("tokens", "penalty"), [(0, 0.0), (60, 0.0), (80, -0.5), (100, -1.0), (500, -1.0)])
def test_the_overlong_penalty_grows_linearly_within_the_margin(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, OverlongSettings(max_tokens=100, margin_tokens=40)) == pytest.approx(penalty)


def test_the_penalty_counts_tokens_after_the_prompt_and_is_logged_by_name() -> None:
    run = trajectory(environment(*[1] * 50), agent(2, 3), environment(4), agent(5))
    charged = add_overlong_penalty(
        TrajectoryBatch((ScoredTrajectory(0, run, Reward(1.0, {"exact_match": 1.0})),)),
        OverlongSettings(max_tokens=8, margin_tokens=8, weight=0.5),
    )
    described = rollout_metrics(charged)
    assert (
        described["reward/overlong"] == -0.5 and described["reward"] == 0.75 and described["reward/exact_match"] == 1.0
    )
    with pytest.raises(SettingError, match=r"margin_tokens is at most max_tokens \(3\), not 4"):
        make_settings(OverlongSettings, {"max_tokens": 3, "margin_tokens": 4})


@given(st.integers(0, 1000), st.integers(1, 7))
@settings(max_examples=at_most(30))
def test_entropy_in_slices_is_the_entropy_with_its_gradient(seed: int, rows: int) -> None:
    raw = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(3).requires_grad_()
    p = raw.softmax(1)
    (expected,) = torch.autograd.grad(-(p * p.log()).sum(1).square().sum(), raw)
    entropy = entropies(raw, rows)
    (gradient,) = torch.autograd.grad(entropy.square().sum(), raw)
    assert torch.allclose(entropy, -(p * p.log()).sum(1)) and torch.allclose(gradient, -expected)


def test_a_token_that_cannot_be_drawn_adds_no_entropy_and_no_nan() -> None:
    assert float(entropies(torch.tensor([[0.0, -math.inf, 0.0]]))) == pytest.approx(math.log(2))


@pytest.mark.parametrize("gradient", [False, True])
def test_the_entropy_is_that_of_the_sampling_distribution_where_the_loss_looks(gradient: bool) -> None:
    logits_BTV = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target_mask_BT = torch.tensor([[False, False, True]])
    ids_BT = torch.tensor([[0, 1, 2]])
    both = target_logprobs(
        logits_BTV, lambda raw: raw, ids_BT, target_mask_BT, 0.5, "with_grad" if gradient else "detached"
    )
    p = (logits_BTV[0, 1] / 0.5).softmax(0)
    assert both[1, 0, 2].item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-5)
    assert torch.equal(both[0], target_logprobs(logits_BTV, lambda raw: raw, ids_BT, target_mask_BT, 0.5))
    assert not both[:, 0, :2].any()
    (slope,) = torch.autograd.grad(both[1].sum(), logits_BTV)
    assert bool(slope.any()) is gradient
