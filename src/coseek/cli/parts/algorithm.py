"""My part: GRPO without the division by the standard deviation; every run's reward less the mean of its group."""

from typing import TYPE_CHECKING

from coseek.training.rl.algorithm import GroupSettings, StepRewards

if TYPE_CHECKING:  # a recipe is checked before torch is loaded
    from torch import Tensor

SETTINGS = GroupSettings


def advantages(step: StepRewards, settings: GroupSettings) -> "Tensor":
    """Return one advantage per token, shape BT."""
    advantages_B = step.compare_groups(lambda rewards_G: (rewards_G - rewards_G.mean()).float())
    return step.every_token(advantages_B)
