"""GRPO: standardises each reward by the mean and standard deviation of its group (Shao et al. 2024, eq. 4)."""

from coseek.training.rl.algorithm import GroupSettings, StepRewards, TokenAdvantages


class GrpoSettings(GroupSettings):
    """Settings of GRPO."""

    scale_by_std: bool = True
    """Divide by the group's standard deviation (false: Dr. GRPO, Liu et al. 2025)."""
    unbiased_std: bool = False
    """Compute it with G − 1 in place of G, as verl and TRL do: advantages are smaller by √(1 − 1/G)."""


SETTINGS = GrpoSettings


def advantages(step: StepRewards, settings: GrpoSettings) -> TokenAdvantages:
    """Return (r - mean) / std of each group, at every policy token; shape BT."""
    return step.every_token(step.standardised(settings.scale_by_std, int(settings.unbiased_std)))
