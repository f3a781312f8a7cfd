"""SAPO: a soft gate in place of PPO's clip (Gao et al. 2025, "Soft Adaptive Policy Optimization", eq. 5 and 6)."""

from pydantic import Field

from coseek.training.rl.policy_loss import LossBatch, PolicyLossSettings, TokenLosses


class SapoSettings(PolicyLossSettings):
    """Sharpness of the gate, in place of `rl.clip_ratio_low` and `rl.clip_ratio_high`."""

    tau_positive: float = Field(default=1.0, gt=0.0)
    """τ at tokens with a positive advantage."""
    tau_negative: float = Field(default=1.05, gt=0.0)
    """τ at all others: larger, since their gradients raise many tokens that were not sampled, and are less stable."""


SETTINGS = SapoSettings
CLIPS_TOKENS = False


def token_losses(batch: LossBatch, settings: SapoSettings) -> TokenLosses:
    """Return -4/τ σ(τ (ρ - 1)) A; shape bt. At ρ = 1 its gradient is that of the unclipped surrogate."""
    import torch

    tau_bt = torch.where(batch.advantages_bt > 0, settings.tau_positive, settings.tau_negative)
    return -torch.sigmoid(tau_bt * (batch.ratios_bt - 1.0)) * 4.0 / tau_bt * batch.advantages_bt
