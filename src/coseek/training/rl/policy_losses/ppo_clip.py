"""PPO's clipped surrogate, token by token (Schulman et al. 2017, eq. 7), as GRPO and DAPO take it."""

from coseek.training.rl.policy_loss import LossBatch, PolicyLossSettings, TokenLosses

SETTINGS = PolicyLossSettings


def token_losses(batch: LossBatch, settings: PolicyLossSettings) -> TokenLosses:
    """Return -min(ρ A, clip(ρ, 1 - clip_ratio_low, 1 + clip_ratio_high) A); shape bt. DAPO: clip_ratio_high 0.28."""
    import torch

    ratios_bt = batch.ratios_bt
    clipped_bt = ratios_bt.clamp(1.0 - batch.clip_ratio_low, 1.0 + batch.clip_ratio_high)
    return -torch.minimum(ratios_bt * batch.advantages_bt, clipped_bt * batch.advantages_bt)
