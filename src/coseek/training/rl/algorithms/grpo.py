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
    from coseek.training.rl.losses import group_advantages

    correction = int(settings.unbiased_std)
    advantages_B = step.compare_groups(
        lambda rewards_G: group_advantages(rewards_G, settings.scale_by_std, correction=correction)
    )
    if settings.scale_by_std:
        advantages_B[step.zero_std_B] = (
            0.0  # the remaining spread is noise of the KL, which the division would scale up to 1
        )
    return step.every_token(advantages_B)
