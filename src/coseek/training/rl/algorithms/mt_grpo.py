"""MT-GRPO: compares each turn's reward with the same turn of the other trajectories of its group (Zeng et al. 2025,
arXiv 2505.11821), and its unbiased form.

The reward's parts that name turns (`rewards_of_turns`) are paid where the turn ends, the rest of the reward at the
last turn. Per-turn normalisation as published compares a turn only with trajectories that reached it. Its baseline then
depends on when the trajectory itself stops, so the gradient is biased wherever the policy decides that: each further
turn is paid the group's mean turn reward (verl-project/verl#7244). `ended: zero` gives trajectories that have ended a
return of 0 and leaves the trajectory itself out of the mean: what is subtracted then depends on nothing that it did,
which is unbiased.
"""

from typing import Literal

from coseek.training.rl.algorithm import StepRewards, TokenAdvantages, TurnSettings


class MtGrpoSettings(TurnSettings):
    """Settings of MT-GRPO."""

    ended: Literal["zero", "skip"] = "zero"
    """How a trajectory that has ended counts in the baseline of a later turn: `zero`, with a reward of 0 from there on
    (unbiased), or `skip`, not at all (as published)."""


SETTINGS = MtGrpoSettings


def advantages(step: StepRewards, settings: MtGrpoSettings) -> TokenAdvantages:
    """Return at each turn the reward from there on, less that of the group's trajectories; shape BT."""
    turn_rewards = step.turn_rewards()
    values = [[0.0] * len(rewards) for rewards in turn_rewards]
    advantage = _advantage_over_reached if settings.ended == "skip" else _advantage_over_all
    for group in step.comparable_groups:
        for row in group:
            for turn in range(len(turn_rewards[row])):
                values[row][turn] = advantage(turn_rewards, group, row, turn)
    return step.every_turn(values)


def _advantage_over_all(turn_rewards: list[list[float]], group: tuple[int, ...], row: int, turn: int) -> float:
    """Σ_{s≥t} r_s of the trajectory, less the mean of the same sum of the others."""
    other_returns = [sum(turn_rewards[other][turn:]) for other in group if other != row]
    return sum(turn_rewards[row][turn:]) - (sum(other_returns) / len(other_returns) if other_returns else 0.0)


def _advantage_over_reached(turn_rewards: list[list[float]], group: tuple[int, ...], row: int, turn: int) -> float:
    """Σ_{s≥t} (r_s - the mean r_s of the trajectories that have a turn s)."""
    total = 0.0
    for later_turn in range(turn, len(turn_rewards[row])):
        reached_rewards = [turn_rewards[other][later_turn] for other in group if len(turn_rewards[other]) > later_turn]
        total += turn_rewards[row][later_turn] - sum(reached_rewards) / len(reached_rewards)
    return total
