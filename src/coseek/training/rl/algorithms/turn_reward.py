"""Turn reward: pays each turn what the reward gave it, less the mean over the group's turns. No baseline of a state."""

from typing import TYPE_CHECKING

from coseek.training.rl.algorithm import GroupSettings, StepRewards

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = GroupSettings


def advantages(step: StepRewards, settings: GroupSettings) -> "Tensor":
    """Return the reward of each turn less the mean turn reward of its group; shape BT."""
    earned = step.turn_rewards()
    values = [[0.0] * len(turns) for turns in earned]
    for group in step.compared:
        every = [reward for row in group for reward in earned[row]]
        mean = sum(every) / max(1, len(every))
        for row in group:
            values[row] = [reward - mean for reward in earned[row]]
    return step.every_turn(values)
