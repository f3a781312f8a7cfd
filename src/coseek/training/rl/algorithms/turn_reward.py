"""Turn reward: each turn's own reward, less the mean over the group's turns. No baseline of a state."""

from coseek.training.rl.algorithm import StepRewards, TokenAdvantages, TurnSettings

SETTINGS = TurnSettings


def advantages(step: StepRewards, settings: TurnSettings) -> TokenAdvantages:
    """Return the reward of each turn less the mean turn reward of its group; shape BT."""
    turn_rewards = step.turn_rewards()
    values = [[0.0] * len(rewards) for rewards in turn_rewards]
    for group in step.comparable_groups:
        group_rewards = [reward for row in group for reward in turn_rewards[row]]
        mean = sum(group_rewards) / max(1, len(group_rewards))
        for row in group:
            values[row] = [reward - mean for reward in turn_rewards[row]]
    return step.every_turn(values)
