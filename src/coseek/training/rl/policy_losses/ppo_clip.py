"""PPO's clipped surrogate, token by token (Schulman et al. 2017, eq. 7), as GRPO and DAPO take it."""

from typing import TYPE_CHECKING

from coseek.training.rl.policy_loss import LossBatch, PolicyLossSettings

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = PolicyLossSettings


def token_losses(batch: LossBatch, settings: PolicyLossSettings) -> "Tensor":
    """Return -min(ρ A, clip(ρ, 1 - clip_ratio_low, 1 + clip_ratio_high) A); shape bt. DAPO: clip_ratio_high 0.28."""
    from coseek.training.rl.losses import policy_loss

    return policy_loss(
        batch.new_bt, batch.old_bt, batch.advantages_bt, batch.mask_bt, batch.clip_ratio_low, batch.clip_ratio_high
    )
