"""Values of the losses at their edges: a single token, a bound that is met, a value that ran down."""

import math

import pytest
import torch

from coseek.training.rl.losses import (
    gae,
    group_advantages,
    kl_estimate,
    last_token_rewards,
    leave_one_out,
    loss_weights,
    policy_loss,
    ratios,
    rewards_to_come,
    value_loss,
    whiten,
)

ONE = torch.tensor([[True]])


def test_each_group_weighs_one_part_of_the_groups_however_long_it_is() -> None:
    """QAgent, eq. 3: 1 / (groups · tokens of its group). The third group has no token and is none."""
    mask_BT = torch.tensor([[True, True, True], [True, False, False], [False, True, False], [False, False, False]])
    weights_BT = loss_weights(mask_BT, "group-mean", groups_B=torch.tensor([4, 4, 9, 2]))
    assert weights_BT.tolist() == [[1 / 8, 1 / 8, 1 / 8], [1 / 8, 0, 0], [0, 1 / 2, 0], [0, 0, 0]]


def test_every_normaliser_of_a_single_token_gives_it_the_weight_one() -> None:
    for kind in ("token-mean", "seq-mean-token-mean", "group-mean", "seq-mean-token-sum-norm"):
        weights_BT = loss_weights(ONE, kind, constant_tokens=1, groups_B=torch.tensor([3]))
        assert weights_BT.tolist() == [[1.0]], kind
    assert loss_weights(ONE, "seq-mean-token-sum-norm", constant_tokens=4).tolist() == [[0.25]]


def test_a_spread_at_the_bound_is_no_spread() -> None:
    assert leave_one_out(torch.tensor([0.0, 1.0]), min_spread=1.0).tolist() == [0.0, 0.0]
    assert leave_one_out(torch.tensor([0.0, 1.0]), min_spread=0.9).tolist() == [-1.0, 1.0]
    assert group_advantages(torch.tensor([0.0, 1.0]), min_std=0.5).tolist() == [0.0, 0.0]
    assert group_advantages(torch.tensor([0.0, 1.0]), min_std=0.4).tolist() == [-1.0, 1.0]
    both_BT = torch.tensor([[True, True]])
    assert whiten(torch.tensor([[1.0, 3.0]]), both_BT, min_std=1.0).tolist() == [[0.0, 0.0]]
    assert whiten(torch.tensor([[1.0, 3.0]]), both_BT, min_std=0.9).tolist() == [[-1.0, 1.0]]


def test_a_single_token_has_nothing_to_be_whitened_against() -> None:
    assert whiten(torch.tensor([[3.0]]), ONE).tolist() == [[0.0]]


def test_the_return_is_not_discounted_unless_that_is_asked_for() -> None:
    rewards_BT, mask_BT = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, True, True]])
    assert rewards_to_come(rewards_BT, mask_BT).tolist() == [[7.0, 6.0, 4.0]]
    assert rewards_to_come(rewards_BT, mask_BT, 0.5).tolist() == [[3.0, 4.0, 4.0]]
    advantages_BT, returns_BT = gae(rewards_BT, torch.ones(1, 3), mask_BT)
    assert advantages_BT.tolist() == [[6.0, 5.0, 3.0]] and returns_BT.tolist() == [[7.0, 6.0, 4.0]]


def test_gae_reads_no_number_behind_the_mask() -> None:
    mask_BT = torch.tensor([[True, False, True]])
    odd_BT = torch.tensor([[1.0, math.nan, 2.0]])
    advantages_BT, returns_BT = gae(odd_BT, odd_BT, mask_BT)
    assert advantages_BT.tolist() == [[2.0, 0.0, 0.0]] and returns_BT.tolist() == [[3.0, 0.0, 2.0]]


@pytest.mark.parametrize(
    ("value", "old", "target", "loss"),
    [
        (1.0, 0.0, 1.0, 0.5 * 0.8**2),  # ran up, to its target: held at .2
        (-1.0, 0.0, -1.0, 0.5 * 0.8**2),  # ran down: held at −.2
        (2.0, 1.5, 2.0, 0.5 * 0.3**2),  # held at 1.7
        (0.0, 0.5, -1.0, 0.5 * 1.3**2),  # held at .3
        (1.6, 1.5, 2.0, 0.5 * 0.4**2),  # within the clip
        (2.0, 1.5, 1.0, 0.5 * 1.0**2),  # ran away from its target: the larger of both errors
    ],
)
def test_a_value_moves_by_a_fifth_at_most_unless_something_else_is_asked_for(
    value: float, old: float, target: float, loss: float
) -> None:
    columns = [torch.tensor([[number, 5.0]]) for number in (value, old, target)]
    found_BT = value_loss(columns[0], columns[1], columns[2], torch.tensor([[True, False]]))
    assert found_BT[0].tolist() == pytest.approx([loss, 0.0])


def test_the_policy_loss_clips_at_a_fifth_unless_something_else_is_asked_for() -> None:
    new_BT = torch.tensor([[math.log(1.5), math.log(0.5), 5.0]])
    mask_BT = torch.tensor([[True, True, False]])
    advantages_BT = torch.tensor([[1.0, -1.0, 1.0]])
    found_BT = policy_loss(new_BT, torch.zeros(1, 3), advantages_BT, mask_BT)
    assert found_BT[0].tolist() == pytest.approx([-1.2, 0.8, 0.0])
    assert ratios(new_BT, torch.zeros(1, 3), mask_BT)[0].tolist() == pytest.approx([1.5, 0.5, 1.0])


def test_a_ratio_is_bounded_on_both_sides() -> None:
    new_BT = torch.tensor([[500.0, -500.0]])
    found_BT = ratios(new_BT, torch.zeros(1, 2), torch.tensor([[True, True]]))
    assert found_BT[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_the_estimates_of_a_kl_by_hand() -> None:
    """The policy stands .5 above its reference at the first token, .5 below it at the second."""
    new_BT, ref_BT = torch.tensor([[-1.0, -2.0, 3.0]]), torch.tensor([[-1.5, -1.5, 9.0]])
    mask_BT = torch.tensor([[True, True, False]])
    up, down = math.exp(-0.5) - 1 + 0.5, math.exp(0.5) - 1 - 0.5
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k1")[0].tolist() == pytest.approx([0.5, -0.5, 0.0])
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k2")[0].tolist() == pytest.approx([0.125, 0.125, 0.0])
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k3")[0].tolist() == pytest.approx([up, down, 0.0], abs=1e-6)
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k1", 0.2)[0].tolist() == pytest.approx([0.2, -0.2, 0.0])
    far = kl_estimate(torch.tensor([[-90.0]]), torch.tensor([[0.0]]), ONE, "k3")
    assert float(far) == pytest.approx(math.exp(20) - 1 - 90, rel=1e-6)


def test_a_reward_comes_to_the_last_token_also_where_that_is_the_first() -> None:
    mask_BT = torch.tensor([[True, False], [True, True], [False, False]])
    found_BT = last_token_rewards(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64), mask_BT)
    assert found_BT.tolist() == [[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]] and found_BT.dtype == torch.float32
