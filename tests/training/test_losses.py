"""The arithmetic of the losses, against hand-made rows and enumerable distributions; and each policy loss against a
worked example of its paper (TRL's are in `test_parity.py`)."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tests.training.tiny import clipped_losses
from torch import Tensor

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.training.learner.logprobs import target_logprobs
from coseek.training.rl.losses import (
    gae,
    group_advantages,
    kl_estimate,
    last_token_rewards,
    leave_one_out,
    loss_weights,
    ratios,
    value_loss,
    whiten,
)
from coseek.training.rl.policy_loss import LossBatch, open_policy_loss, policy_loss_name
from coseek.training.rl.settings import RlSettings
from coseek.training.sft.loop import weighted_loss

rewards = st.lists(st.floats(-5, 5, allow_nan=False, width=32), min_size=2, max_size=12)
ONE = torch.tensor([[True]])
masks = st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4)


def test_the_logprob_of_a_token_comes_from_the_position_before_it() -> None:
    """Trap 7, on a row of six tokens over a vocabulary of three, with logits written by hand."""
    ids_BT = torch.tensor([[2, 0, 1, 1, 2, 0]])
    logits_BTV = torch.log(
        torch.tensor(
            [[[0.5, 0.3, 0.2], [0.1, 0.7, 0.2], [0.2, 0.2, 0.6], [0.25, 0.25, 0.5], [0.9, 0.05, 0.05], [1 / 3] * 3]]
        )
    )
    target_mask_BT = torch.tensor([[False, True, True, False, True, True]])
    logprobs = target_logprobs(logits_BTV, lambda logits: logits, ids_BT, target_mask_BT)
    assert torch.allclose(logprobs.exp()[target_mask_BT], torch.tensor([0.5, 0.7, 0.5, 0.9]))
    assert logprobs[0, 0] == 0 and logprobs[0, 3] == 0


def test_a_temperature_divides_the_logits() -> None:
    logits_BTV = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
    target_mask_BT = torch.tensor([[False, True]])
    values = target_logprobs(logits_BTV, lambda logits: logits, torch.tensor([[0, 0]]), target_mask_BT, temperature=0.5)
    assert float(values[0, 1]) == pytest.approx(4.0 - math.log(math.e**4 + 1), abs=1e-5)


def test_the_first_token_of_a_row_has_no_logprob() -> None:
    with pytest.raises(DataError, match="nothing before it"):
        target_logprobs(torch.zeros(1, 2, 3), lambda x: x, torch.zeros(1, 2).long(), torch.tensor([[True, True]]))


def test_one_right_run_of_five_counts_as_verl_and_trl_count_it_where_the_deviation_is_unbiased() -> None:
    rewards_G = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    assert group_advantages(rewards_G)[0].item() == pytest.approx(2.0)
    assert group_advantages(rewards_G, correction=1)[0].item() == pytest.approx(4 / 5**0.5)


@given(rewards)
def test_group_advantages_are_centred_and_of_unit_spread_or_all_zero(values: list[float]) -> None:
    advantages = group_advantages(torch.tensor(values, dtype=torch.float64)).double()
    assert float(advantages.mean()) == pytest.approx(0.0, abs=1e-5)
    spread = float(torch.tensor(values, dtype=torch.float64).std(correction=0))
    if spread > 1e-6:
        assert float(advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    else:
        assert not advantages.any()


@pytest.mark.parametrize("value", [0.0, 0.1, 0.9, 1 / 3, 1e9])
def test_a_group_without_spread_gets_exactly_zero(value: float) -> None:
    for size in (2, 3, 5, 7, 8):
        for compared in (group_advantages, leave_one_out):
            assert compared(torch.full((size,), value)).tolist() == [0.0] * size


def test_a_group_of_one_keeps_its_raw_reward() -> None:
    for compared in (group_advantages, leave_one_out):
        assert compared(torch.tensor([0.7])).item() == pytest.approx(0.7)


def test_without_scaling_only_the_mean_is_taken_off() -> None:
    assert group_advantages(torch.tensor([0.0, 1.0, 1.0, 0.0]), scale=False).tolist() == [-0.5, 0.5, 0.5, -0.5]


@given(masks, st.integers(0, 1000))
@settings(max_examples=at_most(60))
def test_gae_with_gamma_and_lambda_one_is_the_reward_to_come_minus_the_value(mask: list[list[bool]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.tensor(mask)
    rewards_BT = torch.randn(mask_BT.shape, generator=generator)
    values_BT = torch.randn(mask_BT.shape, generator=generator)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT)
    to_come_BT = torch.where(mask_BT, rewards_BT, 0.0).flip(1).cumsum(1).flip(1)
    assert torch.allclose(advantages_BT, torch.where(mask_BT, to_come_BT - values_BT, 0.0), atol=1e-5)
    assert torch.allclose(returns_BT, torch.where(mask_BT, to_come_BT, 0.0), atol=1e-5)


@given(masks, st.floats(0, 1), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=at_most(60))
def test_gae_sees_policy_tokens_as_if_the_others_were_not_there(
    mask: list[list[bool]], gamma: float, lam: float, seed: int
) -> None:
    """Trap 8: with λ or γ below 1, retrieved tokens in between would dilute credit."""
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.tensor(mask)
    rewards_BT = torch.randn(mask_BT.shape, generator=generator)
    values_BT = torch.randn(mask_BT.shape, generator=generator)
    advantages_BT, _ = gae(rewards_BT, values_BT, mask_BT, gamma, lam)
    for row in range(len(mask)):
        here = mask_BT[row]
        if here.any():
            alone, _ = gae(rewards_BT[row, here][None], values_BT[row, here][None], here[here][None], gamma, lam)
            assert torch.allclose(advantages_BT[row, here], alone[0], atol=1e-5)
        assert not advantages_BT[row, ~here].any()


def test_gae_ignores_values_outside_the_mask() -> None:
    mask_BT = torch.tensor([[True, False, True]])
    odd_BT = torch.tensor([[1.0, math.nan, 2.0]])
    advantages_BT, returns_BT = gae(odd_BT, odd_BT, mask_BT)
    assert advantages_BT.tolist() == [[2.0, 0.0, 0.0]] and returns_BT.tolist() == [[3.0, 0.0, 2.0]]


def test_whitening_uses_masked_tokens_only_and_is_0_without_spread() -> None:
    mask_BT = torch.tensor([[True, False, True]])
    assert torch.allclose(whiten(torch.tensor([[1.0, math.nan, 3.0]]), mask_BT), torch.tensor([[-1.0, 0.0, 1.0]]))
    assert not whiten(torch.full((1, 3), math.nan), torch.zeros(1, 3, dtype=torch.bool)).any()
    assert not whiten(torch.full((1, 3), 0.9), mask_BT).any()
    assert whiten(torch.tensor([[3.0]]), ONE).tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "low", "high", "loss", "moves"),
    [
        (1.0, 2.0, 0.2, 0.2, -2.0, True),
        (1.5, 1.0, 0.2, 0.2, -1.2, False),
        (1.25, 1.0, 0.2, 0.28, -1.25, True),
        (0.5, 1.0, 0.2, 0.2, -0.5, True),
        (0.5, -1.0, 0.2, 0.2, 0.8, False),
        (1.5, -1.0, 0.2, 0.2, 1.5, True),
    ],
)
def test_the_policy_loss_only_clips_ratios_that_moved_too_far(
    ratio: float, advantage: float, low: float, high: float, loss: float, moves: bool
) -> None:
    new_BT = torch.tensor([[math.log(ratio)]], requires_grad=True)
    old_BT, advantages_BT, mask_BT = torch.zeros(1, 1), torch.tensor([[advantage]]), torch.tensor([[True]])
    clipped = clipped_losses(new_BT, old_BT, advantages_BT, mask_BT, clip_ratio_low=low, clip_ratio_high=high)
    assert float(clipped.detach()) == pytest.approx(loss, rel=1e-5)
    (gradient,) = torch.autograd.grad(clipped.sum(), new_BT)
    assert bool(gradient.any()) is moves


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
def test_a_value_moves_by_at_most_a_fifth_by_default(value: float, old: float, target: float, loss: float) -> None:
    columns = [torch.tensor([[number, 5.0]]) for number in (value, old, target)]
    found_BT = value_loss(columns[0], columns[1], columns[2], torch.tensor([[True, False]]))
    assert found_BT[0].tolist() == pytest.approx([loss, 0.0])


def test_a_huge_ratio_is_bounded_on_both_sides() -> None:
    found_BT = ratios(torch.tensor([[500.0, -500.0]]), torch.zeros(1, 2), torch.tensor([[True, True]]))
    assert found_BT[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_values_outside_the_mask_reach_neither_loss_nor_gradient() -> None:
    """Trap 10: a NaN or an overflow at a token that does not count must not count."""
    mask_BT = torch.tensor([[True, False, False]])
    odd = torch.tensor([[-1.0, math.nan, math.inf]])
    weights_BT = torch.tensor([[1.0, 0.0, 0.0]])
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "policy": lambda new: clipped_losses(new, odd, odd, mask_BT),
        "value": lambda new: value_loss(new, odd, odd, mask_BT),
        "kl": lambda new: kl_estimate(new, odd, mask_BT, "k3"),
        "nll": lambda new: weighted_loss(weights_BT)(new, torch.tensor([0])),
    }
    for name, loss in losses.items():
        new_BT = odd.clone().requires_grad_()
        total = loss(new_BT).sum()
        (gradient,) = torch.autograd.grad(total, new_BT)
        assert torch.isfinite(total), name
        assert torch.isfinite(gradient).all() and not gradient[0, 1:].any(), name


logits = st.lists(st.floats(-3, 3, allow_nan=False), min_size=4, max_size=4)


@given(logits, logits)
@settings(max_examples=at_most(80))
def test_k1_and_k3_expect_the_kl_and_k2_and_k3_are_never_negative(first: list[float], second: list[float]) -> None:
    new = torch.tensor([first]).log_softmax(1)
    ref = torch.tensor([second]).log_softmax(1)
    everywhere = torch.ones(1, 4, dtype=torch.bool)
    exact = float((new.exp() * (new - ref)).sum())
    for kind in ("k1", "k3"):
        assert float((new.exp() * kl_estimate(new, ref, everywhere, kind)).sum()) == pytest.approx(exact, abs=1e-4)
    assert bool((kl_estimate(new, ref, everywhere, "k2") >= 0).all())
    assert bool((kl_estimate(new, ref, everywhere, "k3") >= 0).all())


@given(logits, logits)
@settings(max_examples=at_most(40))
def test_the_expected_gradient_of_k2_is_that_of_the_kl_and_of_k1_none(first: list[float], second: list[float]) -> None:
    ref = torch.tensor([second]).log_softmax(1)
    everywhere = torch.ones(1, 4, dtype=torch.bool)

    def gradient(kind: str) -> Tensor:
        raw = torch.tensor([first], requires_grad=True)
        new = raw.log_softmax(1)
        if kind == "exact":
            loss = (new.exp() * (new - ref)).sum()
        else:
            loss = (new.exp().detach() * kl_estimate(new, ref, everywhere, "k2" if kind == "k2" else "k1")).sum()
        (slope,) = torch.autograd.grad(loss, raw)
        return slope

    assert torch.allclose(gradient("k2"), gradient("exact"), atol=1e-4)
    assert torch.allclose(gradient("k1"), torch.zeros(1, 4), atol=1e-5)


def test_the_estimates_of_a_kl_by_hand() -> None:
    """The policy's log-probability is .5 above its reference at the first token, .5 below at the second."""
    new_BT, ref_BT = torch.tensor([[-1.0, -2.0, 3.0]]), torch.tensor([[-1.5, -1.5, 9.0]])
    mask_BT = torch.tensor([[True, True, False]])
    up, down = math.exp(-0.5) - 1 + 0.5, math.exp(0.5) - 1 - 0.5
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k1")[0].tolist() == pytest.approx([0.5, -0.5, 0.0])
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k2")[0].tolist() == pytest.approx([0.125, 0.125, 0.0])
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k3")[0].tolist() == pytest.approx([up, down, 0.0], abs=1e-6)
    assert kl_estimate(new_BT, ref_BT, mask_BT, "k1", 0.2)[0].tolist() == pytest.approx([0.2, -0.2, 0.0])
    far = kl_estimate(torch.tensor([[-90.0]]), torch.tensor([[0.0]]), ONE, "k3")
    assert float(far) == pytest.approx(math.exp(20) - 1 - 90, rel=1e-6)


def test_the_normalisers_weigh_as_their_table_says() -> None:
    mask_BT = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    assert loss_weights(mask_BT, "token-mean")[0].tolist() == pytest.approx([0.25] * 3)
    assert loss_weights(mask_BT, "seq-mean-token-mean")[0].tolist() == pytest.approx([1 / 6] * 3)
    assert loss_weights(mask_BT, "seq-mean-token-mean")[1].tolist() == pytest.approx([0.5, 0, 0])
    assert loss_weights(mask_BT, "seq-mean-token-sum-norm", loss_scale_factor=10)[0].tolist() == pytest.approx(
        [1 / 20] * 3
    )


def test_each_group_weighs_one_part_of_the_groups_however_long_it_is() -> None:
    """QAgent, eq. 3: 1 / (groups · tokens of its group). The third group has no token and does not count."""
    mask_BT = torch.tensor([[True, True, True], [True, False, False], [False, True, False], [False, False, False]])
    weights_BT = loss_weights(mask_BT, "group-mean", groups_B=torch.tensor([4, 4, 9, 2]))
    assert weights_BT.tolist() == [[1 / 8, 1 / 8, 1 / 8], [1 / 8, 0, 0], [0, 1 / 2, 0], [0, 0, 0]]


def test_an_empty_mask_weighs_nothing_rather_than_not_a_number() -> None:
    mask_BT = torch.zeros(2, 3, dtype=torch.bool)
    for kind in ("token-mean", "seq-mean-token-mean", "group-mean", "seq-mean-token-sum-norm"):
        weights_BT = loss_weights(mask_BT, kind, loss_scale_factor=5, groups_B=torch.tensor([0, 1]))
        assert weights_BT.tolist() == [[0.0] * 3] * 2


def test_a_normaliser_names_the_missing_setting() -> None:
    mask_BT = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(SettingError, match="loss_scale_factor above 0, not 0"):
        loss_weights(mask_BT, "seq-mean-token-sum-norm")
    with pytest.raises(SettingError, match="come in groups"):
        loss_weights(mask_BT, "group-mean")


def test_the_reward_is_on_the_last_policy_token_not_the_last_token() -> None:
    mask_BT = torch.tensor([[False, True, True, False], [True, False, False, False], [False, False, False, False]])
    found_BT = last_token_rewards(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64), mask_BT)
    assert found_BT.tolist() == [[0, 0, 2, 0], [3, 0, 0, 0], [0, 0, 0, 0]] and found_BT.dtype == torch.float32


RATIOS = torch.tensor([[0.5, 1.0, 1.5, 7.0], [1.0, 2.0, 9.0, 9.0]], dtype=torch.float64)
MASK_BT = torch.tensor([[True, True, True, True], [True, True, False, False]])


def batch_of(advantages_B: tuple[float, float], low: float = 0.2, high: float = 0.2) -> LossBatch:
    """Two runs with the ratios above to an old policy of probability 1/10 at every token."""
    old_bt = torch.where(MASK_BT, math.log(0.1), 0.0).double()
    new_bt = torch.where(MASK_BT, RATIOS.log() + old_bt, 0.0).requires_grad_()
    advantages_bt = torch.where(MASK_BT, torch.tensor(advantages_B).double()[:, None], 0.0)
    return LossBatch(new_bt, old_bt, advantages_bt, MASK_BT, low, high)


def losses(name: str, batch: LossBatch, **settings: object) -> tuple[Tensor, Tensor]:
    """The loss of every token, and the gradient of their sum by the log-probabilities."""
    loss_agg_mode = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 4} if name == "dr-grpo" else {}
    opened = open_policy_loss(RlSettings(policy_loss=name, policy_loss_settings=settings, **loss_agg_mode))  # type: ignore[arg-type]
    losses_bt = opened(batch)
    (gradient_bt,) = torch.autograd.grad(losses_bt.sum(), batch.new_bt)
    return losses_bt.detach(), gradient_bt


def rows(*numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_gspo_has_one_ratio_for_a_run_and_clips_all_of_it() -> None:
    # s = (ρ1 · ρ2 · …)^(1/n): (0.5 · 1 · 1.5 · 7)^¼ = 1.5137, and (1 · 2)^½ = 1.4142
    first, second = 5.25**0.25, 2.0**0.5
    found_bt, gradient_bt = losses("gspo", batch_of((1.0, -1.0), low=0.2, high=0.6))
    assert torch.allclose(found_bt, rows([-first] * 4, [second, second, 0.0, 0.0]))
    # eq. 10: the gradient of a run's loss is s A / n at each token; here the sum over tokens, so s A
    assert torch.allclose(gradient_bt, rows([-first] * 4, [second, second, 0.0, 0.0]))
    found_bt, gradient_bt = losses("gspo", batch_of((1.0, -1.0), high=0.2))
    assert torch.allclose(found_bt, rows([-1.2] * 4, [second, second, 0.0, 0.0]))
    assert torch.allclose(gradient_bt, rows([0.0] * 4, [second, second, 0.0, 0.0]))
    rare_bt, ones_bt = torch.tensor([[0.5]]).log().requires_grad_(), torch.ones(1, 1)
    low = losses("gspo", LossBatch(rare_bt, torch.zeros(1, 1), -ones_bt, ones_bt.bool(), 0.2, 0.2))
    assert low[0].item() == pytest.approx(0.8) and low[1].item() == 0.0


def test_cispo_weights_every_token_and_drops_none() -> None:
    batch = batch_of((1.0, -2.0))
    found_bt, gradient_bt = losses("cispo", batch, max_weight=5.0)
    weights = rows([0.5, 1.0, 1.5, 5.0], [1.0, 2.0, 0.0, 0.0])
    advantages = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    assert torch.allclose(gradient_bt, -weights * advantages)  # that of A log π, weighted
    assert torch.allclose(found_bt, -weights * advantages * batch.new_bt.detach())
    assert losses("cispo", batch_of((1.0, 1.0)), min_weight=0.9)[1][0, 0] == -0.9


def test_sapo_gates_softly_and_is_the_surrogate_at_a_ratio_of_one() -> None:
    found_bt, gradient_bt = losses("sapo", batch_of((1.0, -1.0)))

    def gate(ratio: float, tau: float) -> tuple[float, float]:
        sigma = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return 4 / tau * sigma, 4 * sigma * (1 - sigma) * ratio

    up, down = [gate(ratio, 1.0) for ratio in (0.5, 1.0, 1.5, 7.0)], [gate(ratio, 1.05) for ratio in (1.0, 2.0)]
    assert torch.allclose(found_bt, rows([-value for value, _ in up], [*(value for value, _ in down), 0.0, 0.0]))
    assert torch.allclose(gradient_bt, rows([-slope for _, slope in up], [*(slope for _, slope in down), 0.0, 0.0]))
    assert gradient_bt[0, 1] == -1.0 and gradient_bt[1, 0] == 1.0


@pytest.mark.parametrize("name", ["ppo-clip", "dr-grpo", "gspo", "cispo", "sapo"])
def test_the_first_update_on_policy_is_reinforce_under_every_loss(name: str) -> None:
    """At ρ = 1 each has the gradient -A of a token's log-probability."""
    old_bt = torch.where(MASK_BT, -2.0, 0.0).double()
    advantages_bt = torch.where(MASK_BT, rows([0.5], [-1.5]), 0.0)
    batch = LossBatch(old_bt.clone().requires_grad_(), old_bt, advantages_bt, MASK_BT, 0.2, 0.2)
    assert torch.allclose(losses(name, batch)[1], -advantages_bt)


def test_a_loss_stays_finite_where_ratios_overflow() -> None:
    new_bt = torch.tensor([[900.0, -900.0], [900.0, 900.0], [-900.0, -900.0]]).requires_grad_()
    advantages_bt = torch.tensor([[-1.0, 1.0]]).expand(3, 2)
    for name in ("ppo-clip", "gspo", "cispo", "sapo"):
        batch = LossBatch(new_bt, torch.zeros(3, 2), advantages_bt, torch.ones(3, 2).bool(), 0.2, 0.2)
        found_bt, gradient_bt = losses(name, batch)
        assert bool(found_bt.isfinite().all()) and bool(gradient_bt.isfinite().all())


def test_an_invalid_policy_loss_is_an_error_sentence() -> None:
    with pytest.raises(UnknownName, match="did you mean 'cispo'"):
        open_policy_loss(RlSettings(policy_loss="cipso"))
    with pytest.raises(
        SettingError, match=r"add rl\.loss_agg_mode=seq-mean-token-sum-norm and rl\.loss_scale_factor=TOKENS"
    ):
        open_policy_loss(RlSettings(policy_loss="dr-grpo"))
    with pytest.raises(
        SettingError, match=r"rl\.policy_loss_settings.*no setting named 'max_wieght'; did you mean 'max_weight'"
    ):
        open_policy_loss(RlSettings(policy_loss="cispo", policy_loss_settings={"max_wieght": 2.0}))
    with pytest.raises(SettingError, match=r"^the policy loss .*batch"):
        policy_loss_name(lambda: 1)  # type: ignore[arg-type, misc]
    assert policy_loss_name(Path("mine.py")) == "mine.py"
    assert open_policy_loss(RlSettings()).clips_tokens
    assert not open_policy_loss(RlSettings(policy_loss="gspo")).clips_tokens
    name = policy_loss_name(lambda batch: batch.ratios_bt.sum())
    with pytest.raises(SettingError, match="one number per token is needed, shape"):
        open_policy_loss(RlSettings(policy_loss=name))(batch_of((1.0, 1.0)))
    name = policy_loss_name(lambda batch: batch.ratios_bt * float("nan"))
    with pytest.raises(SettingError, match="the policy loss lambda returned losses that are not finite"):
        open_policy_loss(RlSettings(policy_loss=name))(batch_of((1.0, 1.0)))
    name = policy_loss_name(lambda batch: batch.ratios_bt.detach())
    with pytest.raises(SettingError, match="the policy loss lambda returned a loss without a gradient"):
        open_policy_loss(RlSettings(policy_loss=name))(batch_of((1.0, 1.0)))


LOSS = "from coseek.training.rl.policy_loss import PolicyLossSettings as SETTINGS\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def token_losses(batch): return 1\n", r"`token_losses` of mine\.py must take \(batch, settings\), in"),
        ("def token_losses(batch, settings): raise ValueError('boo')\n", r"^the policy loss file mine\.py failed"),
    ],
)
def test_a_file_that_is_no_policy_loss_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOSS + source)
    with pytest.raises(SettingError, match=says):
        open_policy_loss(RlSettings(policy_loss="mine.py"))(batch_of((1.0, 1.0)))
