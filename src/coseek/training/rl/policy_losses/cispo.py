"""CISPO: REINFORCE with a clipped importance weight, so that every token keeps a gradient (MiniMax-M1 2025, eq. 4, 5).

PPO's clip drops the gradient of rare tokens whose probability has grown, such as the word that begins a reflection.
"""

from pydantic import Field

from coseek.training.rl.policy_loss import LossBatch, PolicyLossSettings, TokenLosses


class CispoSettings(PolicyLossSettings):
    """Bounds of the importance weight, in place of `rl.clip_ratio_low` and `rl.clip_ratio_high`."""

    max_weight: float = Field(default=5.0, ge=1.0)
    """Largest weight: 1 + ε_high of the paper, which gives no value; 5 is ScaleRL's and TRL's `epsilon_high`."""
    min_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """Smallest weight: 1 - ε_low; the paper sets no bound."""


SETTINGS = CispoSettings
CLIPS_TOKENS = False


def token_losses(batch: LossBatch, settings: CispoSettings) -> TokenLosses:
    """Return -sg(clip(ρ, min_weight, max_weight)) A log π; shape bt."""
    weights_bt = batch.ratios_bt.detach().clamp(settings.min_weight, settings.max_weight)
    return -weights_bt * batch.advantages_bt * batch.new_bt
