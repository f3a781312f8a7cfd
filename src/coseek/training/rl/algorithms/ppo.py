"""PPO: advantages from a trained value model by GAE over the policy's tokens (Schulman et al. 2016, eq. 16)."""

from pydantic import Field

from coseek.training.rl.algorithm import Advantages, CriticSettings, StepRewards


class PpoSettings(CriticSettings):
    """Settings of PPO."""

    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount from one policy token to the next."""
    lam: float = Field(default=1.0, ge=0.0, le=1.0)
    """λ of GAE."""
    whiten: bool = True
    """Centre and scale the advantages of a step over its policy tokens."""


SETTINGS = PpoSettings


def advantages(step: StepRewards, settings: PpoSettings) -> Advantages:
    """Return GAE advantages, whitened if set, and the returns that the critic is fitted to; both of shape BT."""
    from coseek.training.rl.losses import gae, whiten

    assert step.values_BT is not None
    advantages_BT, returns_BT = gae(step.token_rewards(), step.values_BT, step.mask_BT, settings.gamma, settings.lam)
    return Advantages(whiten(advantages_BT, step.mask_BT) if settings.whiten else advantages_BT, returns_BT)
