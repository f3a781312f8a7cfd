"""RLOO: subtracts from each reward the mean of the others of its group (Ahmadian et al. 2024, eq. 8)."""

from coseek.training.rl.algorithm import GroupSettings, StepRewards, TokenAdvantages

SETTINGS = GroupSettings


def advantages(step: StepRewards, settings: GroupSettings) -> TokenAdvantages:
    """Return r - mean of the others' r, at every policy token; shape BT."""
    from coseek.training.rl.losses import leave_one_out

    return step.every_token(step.compare_groups(leave_one_out))
