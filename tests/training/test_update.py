"""One update by hand: the effect of a step of each loss on a table of numbers, and its metrics."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
import torch
from tests.training.echo import QUESTIONS, reward, settings_of
from tests.training.table_learner import TableBackend, TableLearner
from tests.training.tiny import agent, environment, random_trajectories, tiny_model

from coseek.data.question import Question
from coseek.data.trajectory import Segment, StopReason, Trajectory
from coseek.rewards.reward import Reward
from coseek.training.learner.batch import Batch, make_batch
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.learner.workers import Workers
from coseek.training.rl.algorithm import StepRewards, open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.experience import Experience, TokenRecord, make_experience
from coseek.training.rl.rollout import ScoredTrajectory, TrajectoryBatch, score
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import (
    LikelihoodProbe,
    MetricAverager,
    logprob_gap,
    minibatches,
    outcome_of,
    right_rows,
    update_weights,
)

T = TypeVar("T")

SHORT = (environment(1), agent(2, 3))
LONG = (environment(1), agent(4), environment(9), agent(5, 6))
"""Two runs of two and three policy tokens, at columns 1, 2 and 1, 3, 4, each drawn with a log-probability of −1."""


def ran(segments: Sequence[Segment], right: bool) -> Trajectory:
    answer = QUESTIONS[0].id if right else "other"
    return Trajectory(QUESTIONS[0], "test", tuple(segments), (), StopReason.ANSWERED, answer, True)


def table(short: float, long: float) -> list[list[float]]:
    """The same number at all policy tokens of a run, 7 elsewhere."""
    return [[7.0, short, short, 7.0, 7.0], [7.0, long, 7.0, long, long]]


def taught(
    backend: TableBackend, rights: tuple[bool, bool] = (True, False), /, **changes: object
) -> tuple[Experience, RlSettings, dict[str, float]]:
    """Make all updates of a step with the two runs."""
    changes = {"group_size": 2, "num_minibatches": 1} | changes
    settings = settings_of(str(changes.pop("algorithm", "grpo")), **changes)
    algorithm = open_algorithm(settings)
    episodes = score([0, 0], [ran(SHORT, rights[0]), ran(LONG, rights[1])], reward)
    experience = make_experience(episodes, settings, algorithm, backend)
    return experience, settings, update_weights(experience, settings, algorithm, backend, random.Random(0))


def updated(**changes: object) -> tuple[list[list[float]], dict[str, float]]:
    """The table of a policy with log-probability −1 at every token after the updates of a step, and their metrics."""
    policy = TableLearner(table(-1.0, -1.0))
    _, _, metrics = taught(TableBackend(policy), **changes)
    return policy.rows(), metrics


def close(values: list[list[float]], expected: list[list[float]]) -> bool:
    return all(left == pytest.approx(right, abs=1e-6) for left, right in zip(values, expected, strict=True))


def test_one_update_of_grpo_by_hand() -> None:
    """Advantages are 1 and −1, each of the five tokens weighs 1/5, and the gradient of −ρA at ρ = 1 is −A."""
    rows, metrics = updated()
    assert close(rows, table(-0.8, -1.2))
    none = dict.fromkeys(("staleness", "staleness_max", "logprob_gap", "logprob_gap_max", "clip_frac", "kl_old"), 0)
    moved = {"updates": 1, "loss": (-2 + 3) / 5, "grad_norm": math.sqrt(5) / 5, "ratio": 1, "ratio_max": 1}
    assert metrics == pytest.approx(none | moved, abs=1e-6)


def test_a_second_update_is_clipped_against_the_policy_of_the_rollout() -> None:
    """The ratios are then e^.2 and e^−.2: the first is outside the clip and has no gradient, the second is inside."""
    rows, metrics = updated(epochs=2)
    up, down = math.exp(0.2), math.exp(-0.2)
    assert close(rows, table(-0.8, -1.2 - down / 5))
    assert metrics["updates"] == 2
    assert metrics["clip_frac"] == pytest.approx(2 / 10)
    assert metrics["ratio"] == pytest.approx((5 + 2 * up + 3 * down) / 10)
    assert metrics["ratio_max"] == pytest.approx(up)
    assert metrics["kl_old"] == pytest.approx((2 * (up - 1 - 0.2) + 3 * (down - 1 + 0.2)) / 10, abs=1e-6)
    assert metrics["loss"] == pytest.approx((0.2 + (-2 * 1.2 + 3 * down) / 5) / 2)
    assert metrics["staleness"] == pytest.approx(0.5) and metrics["staleness_max"] == 1
    assert metrics["logprob_gap"] == 0  # sampler and trainer are compared before the first update alone


@pytest.mark.parametrize(("low", "high", "share"), [(0.2, 0.3, 0.0), (0.1, 0.3, 0.3), (0.2, 0.2, 0.2)])
def test_each_end_of_the_clip_has_its_own_share_of_tokens_outside(low: float, high: float, share: float) -> None:
    metrics = updated(epochs=2, clip_ratio_low=low, clip_ratio_high=high)[1]
    assert metrics["clip_frac"] == pytest.approx(share)


def test_the_gap_between_sampler_and_trainer_is_measured_at_policy_tokens() -> None:
    policy = TableLearner(table(-1.5, -3.0))
    _, _, metrics = taught(TableBackend(policy), old_logprobs="recompute")
    assert metrics["logprob_gap"] == pytest.approx((2 * 0.5 + 3 * 2.0) / 5)
    assert metrics["logprob_gap_max"] == pytest.approx(2.0)
    assert metrics["ratio"] == 1  # the old policy is the trainer's own, however far the sampler is
    _, _, metrics = taught(TableBackend(TableLearner(table(-1.5, -0.9))))
    assert metrics["ratio"] == pytest.approx((2 * math.exp(-0.5) + 3 * math.exp(0.1)) / 5)


@pytest.mark.parametrize(("kind", "weight", "cut"), [("truncate", 1.5, 2), ("mask", 0.0, 5)])
def test_a_token_counts_by_its_importance_up_to_the_cap(kind: str, weight: float, cut: int) -> None:
    """The sampler drew every token at −1: w = e^.5 is above the cap of 1.5, and e^−1 below its inverse."""
    policy, low = TableLearner(table(-0.5, -2.0)), math.exp(-1) if kind == "truncate" else 0.0
    corrected = {"old_logprobs": "recompute", "rollout_is": kind, "rollout_is_threshold": 1.5}
    metrics = taught(TableBackend(policy), **corrected)[2]
    assert close(policy.rows(), table(-0.5 + weight / 5, -2.0 - low / 5))
    assert metrics["loss"] == pytest.approx((-2 * weight + 3 * low) / 5)
    assert metrics["rollout_is"] == pytest.approx((2 * weight + 3 * low) / 5)
    assert metrics["rollout_is_cut"] == pytest.approx(cut / 5)


def test_each_minibatch_is_weighed_by_its_own_tokens() -> None:
    rows, metrics = updated(num_minibatches=2)
    assert close(rows, table(-1.0 + 1 / 2, -1.0 - 1 / 3)) and metrics["updates"] == 2
    rows, _ = updated(num_minibatches=2, loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=10)
    assert close(rows, table(-1.0 + 1 / 10, -1.0 - 1 / 10))
    assert close(updated(loss_agg_mode="seq-mean-token-mean")[0], table(-1.0 + 1 / 4, -1.0 - 1 / 6))
    assert close(updated(loss_agg_mode="group-mean")[0], table(-1.0 + 1 / 5, -1.0 - 1 / 5))


def test_a_step_without_a_gradient_makes_no_update() -> None:
    policy = TableLearner(table(-1.0, -1.0))
    experience, _, metrics = taught(TableBackend(policy), (True, True))
    assert experience.zero_grad_B.tolist() == [True, True]
    assert metrics == {"updates": 0} and policy.updates_done == 0 and policy.rows() == table(-1.0, -1.0)


def test_a_row_without_a_gradient_is_not_run_and_counts_in_the_normaliser() -> None:
    policy = TableLearner([*table(-1.0, -1.0), [7.0, -1.0, -1.0, 7.0, 7.0]])
    settings = settings_of("grpo", group_size=2, num_minibatches=1)
    algorithm = open_algorithm(settings)
    runs = [ran(SHORT, True), ran(LONG, False), ran(SHORT, True)]
    experience = make_experience(score([0, 0, 1], runs, reward), settings, algorithm, TableBackend(policy))
    assert experience.zero_grad_B.tolist() == [False, False, True]
    metrics = update_weights(experience, settings, algorithm, TableBackend(policy), random.Random(0))
    assert policy.rows_seen == [[0, 1]] and metrics["grad_norm"] == pytest.approx(math.sqrt(5) / 7)


def test_a_kl_in_the_loss_pulls_the_policy_back_to_its_reference() -> None:
    """β(π − π_ref) of k2: the policy is .5 above its reference, so each token is pulled down by β · .5 / 5."""
    policy, reference = TableLearner(table(-1.0, -1.0)), TableLearner(table(-1.5, -1.5))
    changes: dict[str, object] = {"kl_coef": 0.4, "kl_location": "loss", "kl_estimator": "k2"}
    _, _, metrics = taught(TableBackend(policy, reference=reference), **changes)
    assert close(policy.rows(), table(-0.8 - 0.04, -1.2 - 0.04))
    assert metrics["kl_reference"] == pytest.approx(math.exp(-0.5) - 1 + 0.5, abs=1e-6)  # k3, whatever the loss takes
    assert metrics["loss"] == pytest.approx(0.2 + 0.4 * 0.5 * 0.5**2)
    policy = TableLearner(table(-1.0, -1.0))
    taught(TableBackend(policy, reference=reference), kl_clamp=0.1, **changes)
    assert close(policy.rows(), table(-0.8, -1.2))  # .125 is cut to .1, which has no gradient


def test_a_kl_in_the_reward_is_in_no_loss_and_is_still_measured() -> None:
    policy, reference = TableLearner(table(-1.0, -1.0)), TableLearner(table(-1.5, -1.5))
    unscaled = {"scale_by_std": False}
    backend = TableBackend(policy, reference=reference)
    _, _, metrics = taught(backend, kl_coef=0.4, kl_location="reward", algorithm_settings=unscaled)
    k3 = math.exp(-0.5) - 1 + 0.5
    lead = 0.5 + 0.4 * k3 / 2  # the longer run is charged for one token more
    assert close(policy.rows(), table(-1 + lead / 5, -1 - lead / 5))
    assert metrics["kl_reference"] == pytest.approx(k3, abs=1e-6)


def test_a_bonus_for_entropy_raises_it_and_a_measurement_does_not() -> None:
    policy = TableLearner(table(-1.0, -1.0), entropy=0.75)
    _, _, metrics = taught(TableBackend(policy), entropy_coef=0.1)
    assert metrics["entropy"] == pytest.approx(0.75)
    assert metrics["loss"] == pytest.approx(0.2 - 0.1 * 0.75)
    assert policy.entropy_BT[0].tolist() == pytest.approx([0.75, 0.77, 0.77, 0.75, 0.75])
    assert close(policy.rows(), table(-0.8, -1.2))
    measured = TableLearner(table(-1.0, -1.0), entropy=0.75)
    _, _, metrics = taught(TableBackend(measured), measure_entropy=True)
    assert metrics["entropy"] == pytest.approx(0.75) and metrics["loss"] == pytest.approx(0.2)
    assert measured.entropy_BT.tolist() == [[0.75] * 5] * 2


PLAIN_PPO = {"whiten": False, "value_clip": None}


def test_the_critic_is_stepped_with_the_policy() -> None:
    """Returns are 1 and 0; V = .5 and 0 leaves an error in the first run alone, and the gradient is (V − R)/5."""
    policy, critic = TableLearner(table(-1.0, -1.0)), TableLearner(table(0.5, 0.25))
    _, _, metrics = taught(TableBackend(policy, critic), algorithm="ppo", algorithm_settings=PLAIN_PPO)
    assert (critic.updates_done, policy.updates_done) == (1, 1)
    assert close(critic.rows(), table(0.5 + 0.5 / 5, 0.25 - 0.25 / 5))
    assert metrics["value_loss"] == pytest.approx(0.5 * (2 * 0.25 + 3 * 0.0625) / 5)
    assert metrics["critic_grad_norm"] == pytest.approx(math.sqrt(2 * 0.01 + 3 * 0.0025))
    assert metrics["value"] == pytest.approx((2 * 0.5 + 3 * 0.25) / 5)
    # Returns 1, 1, 0, 0, 0 have variance .24; errors .5, .5, −.25 (three times) have .75² · .24.
    assert metrics["explained_variance"] == pytest.approx(1 - 0.5625)
    # The advantages .5 and −.25 are those of the critic before its update.
    assert close(policy.rows(), table(-1.0 + 0.5 / 5, -1.0 - 0.25 / 5))


@pytest.mark.parametrize(("clip", "value"), [(None, 0.92), (0.2, 0.8)])
def test_a_value_that_ran_further_than_its_clip_stays_there_for_the_step(clip: float | None, value: float) -> None:
    """The first update moves V from .5 to .8, past a clip of .2; without one the second moves on by 3 · .2 / 5."""
    policy, critic = TableLearner(table(-1.0, -1.0)), TableLearner(table(0.5, 0.0), lr=3.0)
    changes: dict[str, object] = {"algorithm_settings": {"whiten": False, "value_clip": clip}, "epochs": 2}
    taught(TableBackend(policy, critic), algorithm="ppo", **changes)
    assert close(critic.rows(), table(value, 0.0))


def test_returns_without_spread_have_no_explained_variance() -> None:
    policy, critic = TableLearner(table(-1.0, -1.0)), TableLearner(table(0.5, 0.25))
    backend = TableBackend(policy, critic)
    _, _, metrics = taught(backend, (True, True), algorithm="ppo", algorithm_settings=PLAIN_PPO)
    assert "explained_variance" not in metrics and metrics["value"] == pytest.approx(0.35)


def test_a_kl_in_the_reward_is_a_cost_and_not_a_bonus() -> None:
    """The policy is .5 above its reference: k1 charges .1 · .5 per token, and a token is charged for all later ones."""
    policy, critic = TableLearner(table(-1.0, -1.0)), TableLearner(table(0.0, 0.0))
    backend = TableBackend(policy, critic, TableLearner(table(-1.5, -1.5)))
    charged = {"kl_coef": 0.1, "kl_location": "reward", "kl_estimator": "k1"}
    experience, _, _ = taught(backend, algorithm="ppo", algorithm_settings=PLAIN_PPO, **charged)
    assert experience.returns_BT is not None
    assert close(experience.returns_BT.tolist(), [[0, 1 - 0.1, 1 - 0.05, 0, 0], [0, -0.15, 0, -0.1, -0.05]])
    assert torch.equal(experience.advantages_BT, experience.returns_BT)


def test_the_full_weight_reference_stays_where_the_policy_began() -> None:
    settings = settings_of("grpo", kl_coef=0.1, group_size=2, num_minibatches=1)
    policy = Policy(tiny_model(), settings.policy, 2)
    backend = LocalBackend(policy, settings)
    assert backend.reference is not None
    batch = make_batch([ran(SHORT, True), ran(LONG, False)])
    began = policy.forward(batch, batch.agent_BT)
    algorithm = open_algorithm(settings)
    experience = make_experience(
        score([0, 0], [ran(SHORT, True), ran(LONG, False)], reward), settings, algorithm, backend
    )
    metrics = update_weights(experience, settings, algorithm, backend, random.Random(0))
    assert metrics["grad_norm"] > 0 and not torch.equal(policy.forward(batch, batch.agent_BT), began)
    assert torch.equal(backend.reference.forward(batch, batch.agent_BT), began)
    assert not any(weight.requires_grad for weight in backend.reference.module.parameters())


def step_rewards() -> StepRewards:
    """One run of two policy tokens around one of the environment, paid 1, valued .2 and .4."""
    mask_BT = torch.tensor([[True, False, True]])
    values_BT = torch.tensor([[0.2, 7.0, 0.4]])
    return StepRewards(torch.tensor([1.0]), torch.zeros(1, 3), mask_BT, ((0,),), 1, torch.tensor([False]), values_BT)


def test_ppo_discounts_by_gamma_and_lambda_and_whitens_where_that_is_set() -> None:
    """δ = 0 and .6, so A = .4 · .6 and .6; whitened, two numbers are −1 and 1."""
    own = {"gamma": 0.5, "lam": 0.8}
    plain = open_algorithm(settings_of("ppo", algorithm_settings=own | {"whiten": False})).advantages(step_rewards())
    assert plain.advantages_BT[0].tolist() == pytest.approx([0.24, 0.0, 0.6])
    white = open_algorithm(settings_of("ppo", algorithm_settings=own)).advantages(step_rewards())
    assert white.advantages_BT[0].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    for rows in (plain, white):
        assert rows.returns_BT is not None and rows.returns_BT[0].tolist() == pytest.approx([0.44, 0.0, 1.0])


def test_minibatches_hold_every_row_that_counts_once_in_nearly_equal_parts() -> None:
    policy = TableLearner(table(-1.0, -1.0))
    experience, _, _ = taught(TableBackend(policy))
    seven = replace(
        experience,
        mask_BT=torch.tensor([[True, False]] * 3 + [[False, False]] + [[False, True]] * 4),
        zero_std_B=torch.tensor([True] + [False] * 7),
    )
    parts = minibatches(seven, 3, random.Random(1))
    assert sorted(row for batch in parts for row in batch.tolist()) == [0, 1, 2, 4, 5, 6, 7]
    assert sorted(map(len, parts)) == [2, 2, 3]
    assert [batch.tolist() for batch in parts] == [batch.tolist() for batch in minibatches(seven, 3, random.Random(1))]
    assert [batch.tolist() for batch in parts] != [batch.tolist() for batch in minibatches(seven, 3, random.Random(2))]
    spread = torch.cat(minibatches(seven, 3, random.Random(1), drop_zero_std=True))
    assert sorted(spread.tolist()) == [1, 2, 4, 5, 6, 7]
    assert len(minibatches(seven, 50, random.Random(1))) == 7


def test_a_group_whose_tokens_are_its_divisor_is_split_over_no_minibatches() -> None:
    experience, _, _ = taught(TableBackend(TableLearner(table(-1.0, -1.0))))
    groups_B = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    eight = replace(experience, mask_BT=torch.ones(8, 2).bool(), zero_std_B=torch.zeros(8).bool(), groups_B=groups_B)
    parts = minibatches(eight, 2, random.Random(1), whole_groups=True)
    assert sorted(row for batch in parts for row in batch.tolist()) == [*range(8)]
    assert not set(groups_B[parts[0]].tolist()) & set(groups_B[parts[1]].tolist())
    assert len(minibatches(eight, 5, random.Random(1), whole_groups=True)) == 3
    few = RlSettings(steps=10, questions_per_step=4, num_minibatches=8, loss_agg_mode="group-mean")
    assert few.total_updates == 40  # so that the learning-rate schedule is walked to its end
    policy = TableLearner(table(-1.0, -1.0))
    taught(TableBackend(policy), loss_agg_mode="group-mean", num_minibatches=2)
    assert policy.rows_seen == [[0, 1]]


def test_the_gap_of_a_batch_is_that_of_its_first_rows_at_agent_tokens() -> None:
    batch = make_batch([ran(SHORT, True), ran(LONG, True)])
    policy = TableLearner([[7.0, -1.5, -2.0, 7.0, 7.0], [7.0, -1.0, 7.0, -5.0, -1.0]])
    single, both = logprob_gap(policy, batch, 1), logprob_gap(policy, batch, 9)
    assert single == pytest.approx({"logprob_gap": 0.75, "logprob_gap_max": 1.0})
    assert both == pytest.approx({"logprob_gap": (0.5 + 1.0 + 4.0) / 5, "logprob_gap_max": 4.0})


def test_the_means_of_several_workers_are_those_of_all_their_tokens() -> None:
    mask_BT = torch.tensor([[True, True, False]])
    mine, other = MetricAverager(), MetricAverager()
    mine.add_tokens("a", torch.tensor([[1.0, 2.0, 9.0]]), mask_BT)
    mine.add_max("most", 2.0)
    mine.add("b", 3.0, 2)
    other.add_tokens("a", torch.tensor([[10.0, 9.0, 9.0]]), torch.tensor([[True, False, False]]))
    other.add_tokens("c", torch.tensor([[4.0]]), torch.tensor([[True]]))
    other.add_tokens("none", torch.tensor([[4.0]]), torch.tensor([[False]]), with_max=True)
    other.add_max("most", -4.0)
    other.add_tokens("d", torch.tensor([[-4.0, -3.0, 9.0]]), mask_BT, with_max=True)
    assert mine.result() == {"a": 1.5, "b": 1.5, "most": 2.0}
    mine.merge(cast(Workers, SimpleNamespace(gather=lambda local: [local, other])))
    assert mine.result() == {"a": 13 / 3, "b": 1.5, "c": 4.0, "d": -3.5, "most": 2.0, "d_max": -3.0}


class Half(Workers):
    """One of two workers whose sums the test adds up; at a learning rate of 0 their weights stay equal."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        pass

    def gather(self, local: T) -> list[T]:
        return [local]


def recorded(workers: Workers) -> TokenRecord:
    """The record of two epochs of two minibatches over the same eight rows."""
    still = LearnerSettings(optimizer=OptimizerSettings(lr=0.0), micro_batch_tokens=40)
    settings = settings_of("grpo", group_size=4, epochs=2, num_minibatches=2, measure_entropy=True, policy=still)
    runs, algorithm = random_trajectories(8, random.Random(0)), open_algorithm(settings)
    paid = [ScoredTrajectory(index // 4, run, Reward(index % 2, {})) for index, run in enumerate(runs)]
    experience = make_experience(TrajectoryBatch(tuple(paid)), settings, algorithm, None)
    record = TokenRecord(experience)
    backend = LocalBackend(Policy(tiny_model(), still, 8, workers=workers), settings)
    update_weights(experience, settings, algorithm, backend, random.Random(1), record)
    return record


def test_two_workers_and_two_epochs_keep_the_first_pass_of_each_row() -> None:
    whole, halves = recorded(Workers()), [recorded(Half(rank, 2)) for rank in range(2)]
    assert int(whole.passes_B.max()) == 2
    for name in ("passes_B", "logprobs_BT", "entropy_BT"):
        summed = torch.stack([getattr(half, name) for half in halves]).sum(dim=0)
        assert torch.allclose(summed, getattr(whole, name), atol=1e-5), name


def test_a_run_is_right_by_the_outcome_that_is_watched() -> None:
    bare = replace(ran(SHORT, False), question=Question("q", "?"))
    runs = [(ran(SHORT, True), Reward(0.25, {"f1": 0.5})), (ran(SHORT, False), Reward(0.5, {"f1": 0.25}))]
    episodes = [ScoredTrajectory(0, run, paid) for run, paid in (*runs, (bare, Reward(0.0, {})))]
    for metric, values, right in (
        ("exact_match", [1.0, 0.0, 0.0], [0]),
        ("reward", [0.25, 0.5, 0.0], [1]),
        ("reward/f1", [0.5, 0.25, 0.0], [0]),
    ):
        assert [outcome_of(episode, metric) for episode in episodes] == values
        assert right_rows(episodes, metric).tolist() == right


class Drifts(TableLearner):
    """Returns −id / 10 for every token, and half of that at each further call."""

    def forward(self, batch: Batch, target_mask_BT: torch.Tensor) -> torch.Tensor:
        self.scale = getattr(self, "scale", 0.2) / 2
        return torch.where(target_mask_BT, batch.ids_BT * -self.scale, 0.0)


def test_the_probe_measures_the_first_right_runs_with_a_gradient_before_and_after() -> None:
    rows = [(agent(9), environment(1)), (agent(4), agent(6)), (agent(2, logprob=-4.0), environment(5)), (agent(3),)]
    batch = make_batch([ran((environment(1), *row), True) for row in rows])

    def probed(right: list[int], runs: int) -> dict[str, float]:
        right_N, updated_B = torch.tensor(right, dtype=torch.long), torch.tensor([False, True, True, True])
        return LikelihoodProbe(Drifts([[0.0]]), batch, right_N, updated_B, runs).metrics()

    # Of all right ones as sampled: tokens of −1, −1, −1 and −4. Of the second alone: ids 4 and 6, a tenth, then half.
    assert probed([0, 1, 2], 1) == pytest.approx({"right_logprob": -7 / 4, "right_shift": 0.5 - 0.25})
    assert probed([0, 1, 2], 2) == pytest.approx({"right_logprob": -7 / 4, "right_shift": 0.4 - 0.2})
    assert probed([0], 2) == {"right_logprob": -1.0} and probed([], 2) == {}
