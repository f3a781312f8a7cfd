"""Losses: pure functions of tensors. They use no model, file, clock or random generator.

Shapes: B rows · T tokens · N selected tokens · G rollouts of one question · D hidden size · V vocabulary. `batch.py`
defines the index along T. `mask_BT` is True at the policy's tokens. Inputs and outputs are masked with `torch.where`:
0 · NaN is NaN, and so is the gradient of an unselected branch that overflowed.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from coseek.core.errors import SettingError
from coseek.training.rl.settings import KlEstimator, LossAggMode

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this, which keeps float32 finite. PPO's clip acts far below it."""


def loss_weights(
    mask_BT: Tensor, kind: LossAggMode, loss_scale_factor: int = 0, groups_B: Tensor | None = None
) -> Tensor:
    """Return the weight of each masked token, such that the loss is the sum of weight · token loss; shape BT.

    The names are verl's; `group-mean` is QAgent's, which verl lacks.

    | kind | weight of a token | source |
    |---|---|---|
    | token-mean | 1 / tokens of the batch | DAPO; Search-R1's code, there per micro-batch |
    | seq-mean-token-mean | 1 / (rows · tokens of its row) | GRPO as first published |
    | group-mean | 1 / (groups · tokens of its group) | QAgent, eq. 3 |
    | seq-mean-token-sum-norm | 1 / (rows · `loss_scale_factor`) | Dr. GRPO |

    Weights are computed over the whole batch *before* it is split, so the split changes no gradient. Rows without a
    masked token have weight 0 and are not counted. With no masked token at all every weight is 0.
    """
    per_row_B = mask_BT.sum(dim=1)
    rows = (per_row_B > 0).sum().clamp(min=1)
    if kind == "token-mean":
        weight_B = torch.ones_like(per_row_B) / per_row_B.sum().clamp(min=1)
    elif kind == "seq-mean-token-mean":
        weight_B = 1.0 / (rows * per_row_B.clamp(min=1))
    elif kind == "seq-mean-token-sum-norm":
        if loss_scale_factor <= 0:
            raise SettingError(f"loss_agg_mode {kind!r} needs loss_scale_factor above 0, not {loss_scale_factor}")
        weight_B = torch.ones_like(per_row_B) / (rows * loss_scale_factor)
    else:
        weight_B = _group_weights(per_row_B, groups_B)
    return torch.where(mask_BT, weight_B.float()[:, None], 0.0)


def _group_weights(per_row_B: Tensor, groups_B: Tensor | None) -> Tensor:
    if groups_B is None:
        raise SettingError("loss_agg_mode 'group-mean' needs rows that come in groups (`groups_B`)")
    _, group_of_B = torch.unique(groups_B, return_inverse=True)
    per_group = torch.zeros(int(group_of_B.max()) + 1, dtype=per_row_B.dtype, device=per_row_B.device)
    per_group = per_group.index_add(0, group_of_B, per_row_B)
    groups = (per_group > 0).sum().clamp(min=1)
    return 1.0 / (groups * per_group[group_of_B].clamp(min=1))


def group_advantages(rewards_G: Tensor, scale: bool = True, min_std: float = 1e-6, correction: int = 0) -> Tensor:
    """Return GRPO's (r - mean) / std of one group; `scale=False` leaves out the division (Dr. GRPO).

    A group without spread gets exactly zero. A group of one has no baseline and keeps its raw reward (mean 0, std 1),
    as in the public code. std is the population's; with `correction` 1 the unbiased one, as in verl and TRL.
    """
    rewards_G = rewards_G.double()
    if len(rewards_G) == 1:
        return rewards_G.float()
    centred_G = rewards_G - rewards_G.mean()
    std = rewards_G.std(correction=correction)
    # Not `/ (std + eps)`: the mean of three 0.9s need not be 0.9, and 1/eps turns the rounding error into a gradient.
    if float(std) <= min_std:
        return torch.zeros_like(rewards_G).float()
    return (centred_G / std if scale else centred_G).float()


def has_zero_std(rewards_G: Tensor) -> bool:
    """Whether all rewards of the group are equal."""
    return bool((rewards_G.max() - rewards_G.min()) <= 1e-6)


def zero_std_rows(rewards_B: Tensor, groups: Iterable[Sequence[int]], group_size: int) -> Tensor:
    """Return the rows of groups whose rewards are all equal; shape B. Groups of one requested row have a spread."""
    zero_std_B = torch.zeros(len(rewards_B), dtype=torch.bool)
    for rows in groups:
        zero_std_B[[*rows]] = group_size > 1 and has_zero_std(rewards_B[[*rows]])
    return zero_std_B


def leave_one_out(rewards_G: Tensor, min_spread: float = 1e-6) -> Tensor:
    """Return RLOO's reward less the mean of the *other* rewards of the group (Ahmadian et al. 2024, eq. 8).

    That is G / (G - 1) times GRPO's centred reward, without the division by std. As in `group_advantages`, a group
    without spread gets exactly zero, and a group of one keeps its raw reward.
    """
    rewards_G = rewards_G.double()
    size = len(rewards_G)
    if size == 1:
        return rewards_G.float()
    if float(rewards_G.max() - rewards_G.min()) <= min_spread:
        return torch.zeros_like(rewards_G).float()
    return ((rewards_G - rewards_G.mean()) * (size / (size - 1))).float()


def rewards_to_come(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """Return Σ γ^k r over the policy tokens from each token on, REINFORCE's return; 0 where masked out.

    REINFORCE++ (Hu 2025, eq. 3) uses it, whitened over the step, as the advantage. It is GAE without a critic: V = 0
    and λ = 1.
    """
    return gae(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, gamma, 1.0)[0]


def last_token_rewards(rewards_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Put each row's reward on its last masked token, 0 elsewhere; shape BT. A row without a masked token is all 0."""
    width = mask_BT.shape[1]
    at_T = torch.arange(width, device=mask_BT.device)
    last_B = torch.where(mask_BT, at_T, -1).max(dim=1).values
    return torch.where(at_T[None, :] == last_B[:, None], rewards_B[:, None].float(), 0.0)


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute generalised advantage estimates over the policy's tokens alone, skipping all others.

    δ_t = r_t + γ V_next(t) - V_t and A_t = δ_t + γλ A_next(t), where next(t) is the row's next *policy* token and V is
    0 after the last one (Schulman et al. 2016, eq. 11, 16). Returns (advantages, returns = advantages + values), 0
    where masked out. With γ = λ = 1 an advantage is the sum of future rewards minus the value.
    """
    rewards_BT = torch.where(mask_BT, rewards_BT, 0.0)
    values_BT = torch.where(mask_BT, values_BT, 0.0)
    next_value_B = next_advantage_B = torch.zeros_like(values_BT[:, 0])
    columns: list[Tensor] = []
    for t in range(mask_BT.shape[1] - 1, -1, -1):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        here_B = mask_BT[:, t]
        next_value_B = torch.where(here_B, values_BT[:, t], next_value_B)
        next_advantage_B = torch.where(here_B, advantage_B, next_advantage_B)
        columns.append(torch.where(here_B, advantage_B, 0.0))
    advantages_BT = torch.stack(columns[::-1], dim=1)
    return advantages_BT, torch.where(mask_BT, advantages_BT + values_BT, 0.0)


def whiten(values_BT: Tensor, mask_BT: Tensor, min_std: float = 1e-6) -> Tensor:
    """Return (x - mean) / std over the masked tokens, 0 elsewhere; all 0 without spread."""
    count = mask_BT.sum().clamp(min=1)
    values_BT = torch.where(mask_BT, values_BT, 0.0)
    centred_BT = torch.where(mask_BT, values_BT - values_BT.sum() / count, 0.0)
    std = (centred_BT.square().sum() / count).sqrt()
    return torch.where(std > min_std, centred_BT / std.clamp(min=min_std), torch.zeros_like(centred_BT))


def ratios(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return π_new / π_old at the masked tokens, 1 elsewhere."""
    log_ratio_BT = torch.where(mask_BT, new_BT, 0.0) - torch.where(mask_BT, old_BT, 0.0)
    return log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def importance_weights(
    trainer_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor, kind: Literal["truncate", "mask"], cap: float
) -> Tensor:
    """Return the weight of each sampled token for a sampler that is not the trainer, 1 elsewhere.

    With w = π_trainer / π_sampler at the weights of the rollout: `truncate` is min(w, C) (truncated importance
    sampling; Ionides 2008, used for mismatched engines by Yao et al. 2025), `mask` is w for 1/C ≤ w ≤ C and else 0
    (Ling team 2025, "IcePop").
    """
    weight_BT = ratios(trainer_BT, sampler_BT, mask_BT)
    if kind == "truncate":
        return weight_BT.clamp(max=cap)
    return torch.where((weight_BT >= 1.0 / cap) & (weight_BT <= cap), weight_BT, 0.0)


def value_loss(
    values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float | None = 0.2
) -> Tensor:
    """Return ½ max((V - R)², (clip(V, V_old ± clip) - R)²) per token, 0 elsewhere; `clip=None` is ½ (V - R)².

    As in the PPO reference code, the clip limits the change of V from its value at rollout time within one step.
    """
    values_BT = torch.where(mask_BT, values_BT, 0.0)
    returns_BT = torch.where(mask_BT, returns_BT, 0.0)
    squared_BT = (values_BT - returns_BT).square()
    if clip is not None:
        old_BT = torch.where(mask_BT, old_BT, 0.0)
        near_BT = old_BT + (values_BT - old_BT).clamp(-clip, clip)
        squared_BT = torch.maximum(squared_BT, (near_BT - returns_BT).square())
    return torch.where(mask_BT, 0.5 * squared_BT, 0.0)


def kl_estimate(
    new_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, kind: KlEstimator, clamp: float | None = None
) -> Tensor:
    """Estimate KL(π ‖ π_ref) per sampled token (Schulman, "Approximating KL divergence", 2020), 0 where masked out.

    With d = log π - log π_ref at a token drawn from π: k1 = d (unbiased, may be negative), k2 = d²/2 (biased, but its
    gradient is the KL's), k3 = e^(-d) - 1 + d (unbiased, never negative). As a *loss* k1 has
    an expected gradient of zero, so use it in the reward. `clamp` clamps the estimate to ±clamp (Search-R1's code: k3
    at 10).
    """
    difference_BT = torch.where(mask_BT, new_BT, 0.0) - torch.where(mask_BT, ref_BT, 0.0)
    if kind == "k1":
        estimate_BT = difference_BT
    elif kind == "k2":
        estimate_BT = 0.5 * difference_BT.square()
    else:
        # expm1 keeps k3 at 0 or above where e^(-d) - 1 + d would round below it.
        estimate_BT = (torch.expm1((-difference_BT).clamp(max=MAX_LOG_RATIO)) + difference_BT).clamp(min=0.0)
    if clamp is not None:
        estimate_BT = estimate_BT.clamp(-clamp, clamp)
    return torch.where(mask_BT, estimate_BT, 0.0)
