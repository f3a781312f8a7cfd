"""Every field of a step's experience, on three runs of which each number is known."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tests.training.echo import settings_of
from tests.training.table_learner import TableBackend, TableLearner
from tests.training.test_update import LONG, SHORT, close, ran, table
from tests.training.tiny import agent, environment, random_trajectories, trajectory

from coseek.core.errors import DataError
from coseek.data.trajectory import StopReason
from coseek.rewards.reward import Reward
from coseek.training.learner.batch import make_batch, micro_batches
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.rollout import ScoredTrajectory, TrajectoryBatch, row_rewards
from coseek.training.rl.settings import RlSettings

TABLE = [*table(-1.5, -2.0), [7.0, -0.5, -0.5, 7.0, 7.0]]


def episodes(*rewards: float) -> TrajectoryBatch:
    """Two runs of group 4 and one of group 9; the second ran into its limit, and was sampled three updates later."""
    runs = [ran(SHORT, True), replace(ran(LONG, False), stop=StopReason.TOKEN_LIMIT), ran(SHORT, True)]
    rows = zip((4, 4, 9), runs, rewards, (2, 5, 2), strict=True)
    return TrajectoryBatch(tuple(ScoredTrajectory(group, run, Reward(paid), at) for group, run, paid, at in rows))


def made(backend: TableBackend, *rewards: float, algorithm: str = "grpo", **changes: object) -> Experience:
    settings = settings_of(algorithm, **({"group_size": 2} | changes))
    return make_experience(episodes(*rewards), settings, open_algorithm(settings), backend)


NONE = [0.0] * 5


def test_an_experience_holds_what_its_runs_hold() -> None:
    experience = made(TableBackend(TableLearner(TABLE)), 1.0, 0.0, 0.5)
    assert experience.groups_B.tolist() == [4, 4, 9] and experience.sampled_at_B.tolist() == [2, 5, 2]
    assert experience.batch.ids_BT.tolist() == [[1, 2, 3, 0, 0], [1, 4, 9, 5, 6], [1, 2, 3, 0, 0]]
    assert torch.equal(experience.mask_BT, experience.batch.agent_BT)
    assert close(experience.advantages_BT.tolist(), [[0, 1, 1, 0, 0], [0, -1, 0, -1, -1], NONE])
    assert experience.old_BT is experience.batch.logprobs_BT
    assert (experience.reference_BT, experience.values_BT, experience.returns_BT) == (None, None, None)
    assert experience.zero_std_B.tolist() == [False, False, True] == experience.zero_grad_B.tolist()
    assert (experience.frac_reward_zero_std, experience.singleton_groups) == (0.5, 1)


def test_old_logprobs_can_be_the_trainers_own() -> None:
    experience = made(TableBackend(TableLearner(TABLE)), 1.0, 0.0, 0.5, old_logprobs="recompute")
    assert close(experience.old_BT.tolist(), [[0, -1.5, -1.5, 0, 0], [0, -2, 0, -2, -2], [0, -0.5, -0.5, 0, 0]])


def test_reference_and_critic_look_at_the_tokens_in_the_loss() -> None:
    backend = TableBackend(TableLearner(TABLE), TableLearner(TABLE), TableLearner(TABLE))
    experience = made(backend, 1.0, 0.0, 0.5, algorithm="ppo", truncated="mask", kl_coef=0.1)
    looked = [[0, -1.5, -1.5, 0, 0], NONE, [0, -0.5, -0.5, 0, 0]]
    assert experience.mask_BT.any(dim=1).tolist() == [True, False, True]
    assert experience.reference_BT is not None and close(experience.reference_BT.tolist(), looked)
    assert experience.values_BT is not None and close(experience.values_BT.tolist(), looked)


@pytest.mark.parametrize(
    ("changes", "silent"),
    [
        ({}, True),
        ({"entropy_coef": 0.01}, False),
        ({"measure_entropy": True}, False),  # its mean is over all rows
        ({"policy_loss": "proximal.py"}, False),  # which may move them by itself
        ({"kl_coef": 0.1, "kl_location": "loss"}, False),
        ({"kl_coef": 0.1, "kl_location": "reward"}, True),
        ({"algorithm": "ppo"}, False),
    ],
)
def test_rows_are_silent_where_nothing_but_their_advantage_could_move_them(
    changes: dict[str, object], silent: bool
) -> None:
    policy = TableLearner([[7.0, -1.0, -1.0, 7.0, 7.0]] * 3)
    reference = TableLearner([[0.0, -1.0, -1.0, -1.0, -1.0]] * 3) if "kl_coef" in changes else None
    critic = TableLearner([[0.0] * 5] * 3) if "algorithm" in changes else None
    experience = made(TableBackend(policy, critic, reference), 1.0, 1.0, 1.0, **changes)  # type: ignore[arg-type]
    assert experience.zero_grad_B.tolist() == [silent] * 3


def test_a_truncated_run_pays_its_penalty_only_where_it_is_penalised() -> None:
    def rewards(**changes: object) -> list[float]:
        settings: RlSettings = settings_of("grpo", **changes)
        rewards_B = row_rewards(episodes(1.0, 1.0, 1.0), settings)
        assert rewards_B.dtype == torch.float64
        paid: list[float] = rewards_B.tolist()
        return paid

    assert rewards(truncated="penalise") == [1.0, 0.5, 1.0]
    assert rewards(truncated="penalise", truncation_penalty=0.25) == [1.0, 0.75, 1.0]
    assert rewards(truncated="mask") == rewards() == [1.0, 1.0, 1.0]


def test_a_masked_run_counts_in_its_groups_mean_with_its_kl() -> None:
    def first_row(truncated: str) -> list[float]:
        backend = TableBackend(TableLearner(TABLE), None, TableLearner(TABLE))
        charged = {"kl_coef": 0.1, "kl_location": "reward", "algorithm_settings": {"scale_by_std": False}}
        experience = made(backend, 1.0, 0.0, 0.5, truncated=truncated, **charged)  # type: ignore[arg-type]
        assert experience.mask_BT[1].any() == (truncated == "keep")
        row: list[float] = experience.advantages_BT[0].tolist()
        return row

    assert first_row("mask") == first_row("keep") != NONE


def test_groups_of_one_are_neither_flat_nor_alone() -> None:
    rows = made(TableBackend(TableLearner(TABLE)), 1.0, 0.0, 0.5, group_size=1)
    assert rows.zero_std_B.tolist() == [False] * 3 and (rows.frac_reward_zero_std, rows.singleton_groups) == (0.0, 0)


# --- batches


def test_a_batch_is_padded_on_the_right_and_says_where_its_rows_end() -> None:
    batch = make_batch([ran(SHORT, True), ran(LONG, True)])
    assert len(batch) == 2 and batch.lengths_B.tolist() == [3, 5]
    assert batch.logprobs_BT.tolist() == [[0, -1, -1, 0, 0], [0, -1, 0, -1, -1]]
    assert batch.real_BT.tolist() == [[True, True, True, False, False], [True] * 5]
    assert batch.predicted_BT.tolist() == [[False, True, True, False, False], [False, True, True, True, True]]
    assert (batch.ids_BT.dtype, batch.logprobs_BT.dtype) == (torch.long, torch.float32)
    chosen = batch.select(torch.tensor([0, 0]))
    assert chosen.logprobs_BT.tolist() == [[0, -1, -1]] * 2 and chosen.lengths_B.tolist() == [3, 3]
    assert batch.to(torch.device("cpu")).lengths_B.tolist() == [3, 5]


def test_micro_batches_begin_with_the_longest_rows_and_keep_the_order_of_equal_ones() -> None:
    def parts(lengths: list[int], most: int) -> list[list[int]]:
        return [rows.tolist() for rows in micro_batches(torch.tensor(lengths), most)]

    assert parts([2, 5, 2, 5, 1], 10) == [[1, 3], [0, 2, 4]]
    assert parts([2, 5, 2, 5, 1], 4) == [[1], [3], [0, 2], [4]]
    assert parts([3, 3, 3], 6) == [[0, 1], [2]] and parts([0, 0], 1) == [[0], [1]] and parts([], 4) == []


@given(st.integers(1, 8), st.integers(0, 10_000))
@settings(max_examples=at_most(40))
def test_a_row_of_the_batch_is_the_ledger_and_nothing_else(count: int, seed: int) -> None:
    runs = random_trajectories(count, random.Random(seed))
    batch = make_batch(runs)
    for row, run in enumerate(runs):
        length = int(batch.lengths_B[row])
        assert tuple(batch.ids_BT[row, :length].tolist()) == run.ids
        assert tuple(batch.agent_BT[row, :length].tolist()) == run.agent_mask
        assert not batch.agent_BT[row, length:].any() and not batch.real_BT[row, length:].any()
        logprobs = torch.tensor([value for segment in run.segments for value in segment.logprobs])
        assert torch.equal(batch.logprobs_BT[row][batch.agent_BT[row]], logprobs)


def test_a_run_that_begins_with_the_agent_is_refused() -> None:
    with pytest.raises(DataError, match="'q' begins without a prompt"):
        make_batch([trajectory(agent(1), environment(2))])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200))
@settings(max_examples=at_most(60))
def test_micro_batches_hold_every_row_once_and_keep_the_budget(lengths: list[int], budget: int) -> None:
    parts = micro_batches(torch.tensor(lengths), budget)
    assert sorted(row for batch in parts for row in batch.tolist()) == list(range(len(lengths)))
    for batch in parts:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
