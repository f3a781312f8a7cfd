"""Policy losses: each beside a worked example of its paper, by hand; TRL's are in `test_parity.py`."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.training.echo import settings_of, train
from torch import Tensor

from coseek.core.errors import SettingError, UnknownName
from coseek.training.rl.losses import ratios
from coseek.training.rl.policy_loss import LossBatch, open_policy_loss, policy_loss_name
from coseek.training.rl.settings import RlSettings

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


@pytest.mark.parametrize("name", ["ppo-clip", "dr-grpo"])
def test_ppo_clips_a_token_that_ran_ahead(name: str) -> None:
    found_bt, gradient_bt = losses(name, batch_of((1.0, -1.0)))
    # A > 0: ρ above 1.2 earns no more; A < 0: -min(-ρ, -clip ρ) = ρ where ρ > 1.2
    assert torch.allclose(found_bt, rows([-0.5, -1.0, -1.2, -1.2], [1.0, 2.0, 0.0, 0.0]))
    assert torch.allclose(gradient_bt, rows([-0.5, -1.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]))


def test_the_default_is_the_clipped_surrogate_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    new, old, advantages = (torch.randn(5, 7, generator=draw) for _ in range(3))
    mask = torch.rand(5, 7, generator=draw) < 0.6
    settings = RlSettings(clip_ratio_high=0.28)
    found_bt = open_policy_loss(settings)(LossBatch.of(new, old, advantages, mask, settings))
    ratios_bt = ratios(new, old, mask)
    surrogate_bt = torch.minimum(ratios_bt * advantages, ratios_bt.clamp(0.8, 1.28) * advantages)
    assert torch.equal(found_bt, torch.where(mask, -surrogate_bt, 0.0))


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
    new_bt = torch.tensor([[900.0, -900.0]]).requires_grad_()
    for name in ("ppo-clip", "gspo", "cispo", "sapo"):
        batch = LossBatch(new_bt, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2).bool(), 0.2, 0.2)
        found_bt, gradient_bt = losses(name, batch)
        assert bool(found_bt.isfinite().all()) and bool(gradient_bt.isfinite().all())


def unclipped(batch: LossBatch) -> Tensor:
    return -batch.ratios_bt * batch.advantages_bt


@pytest.mark.parametrize("loss", ["gspo", "cispo", "sapo", unclipped])
def test_a_policy_learns_under_every_loss(loss: str | Callable[[LossBatch], Tensor], tmp_path: Path) -> None:
    name = loss if isinstance(loss, str) else policy_loss_name(loss)
    clips = {"clip_ratio_low": 0.003, "clip_ratio_high": 0.004} if loss == "gspo" else {}
    _, rows = train(
        tmp_path, settings_of("grpo", policy_loss=name, loss_agg_mode="seq-mean-token-mean", steps=12, **clips)
    )
    assert rows[-1]["reward"] > rows[0]["reward"] + 0.2


def test_what_is_wrong_with_a_loss_is_said() -> None:
    with pytest.raises(UnknownName, match="did you mean 'cispo'"):
        open_policy_loss(RlSettings(policy_loss="cipso"))
    with pytest.raises(
        SettingError, match=r"add rl\.loss_agg_mode=seq-mean-token-sum-norm and rl\.loss_scale_factor=TOKENS"
    ):
        open_policy_loss(RlSettings(policy_loss="dr-grpo"))
    with pytest.raises(SettingError, match="no setting named 'max_wieght'; did you mean 'max_weight'"):
        open_policy_loss(RlSettings(policy_loss="cispo", policy_loss_settings={"max_wieght": 2.0}))
    name = policy_loss_name(lambda batch: batch.ratios_bt.sum())
    with pytest.raises(SettingError, match="one number per token is needed, shape"):
        open_policy_loss(RlSettings(policy_loss=name))(batch_of((1.0, 1.0)))
