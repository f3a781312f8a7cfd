"""REINFORCE++: the return of each token, whitened over the step (Hu 2025, eq. 3). Needs no groups."""

from pydantic import Field

from coseek.training.rl.algorithm import AlgorithmSettings, StepRewards, TokenAdvantages


class ReinforcePpSettings(AlgorithmSettings):
    """Settings of REINFORCE++."""

    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount from one policy token to the next."""
    whiten: bool = True
    """Centre and scale the advantages of a step over its policy tokens."""


SETTINGS = ReinforcePpSettings


def advantages(step: StepRewards, settings: ReinforcePpSettings) -> TokenAdvantages:
    """Return Σ γ^k r over the policy tokens from each token on, whitened if set; shape BT."""
    from coseek.training.rl.losses import rewards_to_come, whiten

    advantages_BT = rewards_to_come(step.token_rewards(), step.mask_BT, settings.gamma)
    return whiten(advantages_BT, step.mask_BT) if settings.whiten else advantages_BT
