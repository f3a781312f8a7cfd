"""MT-GRPO: compares what each turn earned with the same turn of the other runs of its group (Zeng et al. 2025,
arXiv 2505.11821), and its unbiased form.

The reward's parts that name turns (`rewards_of_turns`) are paid where the turn ends, the rest of the reward at the
last turn. Per-turn normalisation as published compares a turn only with runs that reached it. Its baseline then depends
on when the run itself stops, so the gradient is biased wherever the policy decides that: each further turn is paid the
group's mean turn reward (verl-project/verl#7244). `ended: zero` gives runs that have ended a return of 0 and leaves the
run itself out of the mean: what is subtracted then depends on nothing that the run did, which is unbiased.
"""

from typing import TYPE_CHECKING, Literal

from coseek.training.rl.algorithm import GroupSettings, StepRewards

if TYPE_CHECKING:
    from torch import Tensor


class MtGrpoSettings(GroupSettings):
    """Settings of MT-GRPO."""

    ended: Literal["zero", "skip"] = "zero"
    """How a run that has ended counts in the baseline of a later turn: `zero`, as one that earned nothing from there
    on (unbiased), or `skip`, not at all (as published)."""


SETTINGS = MtGrpoSettings


def advantages(step: StepRewards, settings: MtGrpoSettings) -> "Tensor":
    """Return at each turn the reward from there on, less that of the group's runs; shape BT."""
    earned = step.turn_rewards()
    values = [[0.0] * len(turns) for turns in earned]
    for group in step.compared:
        for row in group:
            for turn in range(len(earned[row])):
                values[row][turn] = (_reached if settings.ended == "skip" else _unbiased)(earned, group, row, turn)
    return step.every_turn(values)


def _unbiased(earned: list[list[float]], group: tuple[int, ...], row: int, turn: int) -> float:
    """Σ_{s≥t} r_s of the run, less the mean of the same sum of the others."""
    others = [sum(earned[other][turn:]) for other in group if other != row]
    return sum(earned[row][turn:]) - (sum(others) / len(others) if others else 0.0)


def _reached(earned: list[list[float]], group: tuple[int, ...], row: int, turn: int) -> float:
    """Σ_{s≥t} (r_s - the mean r_s of the runs that have a turn s)."""
    total = 0.0
    for later in range(turn, len(earned[row])):
        there = [earned[other][later] for other in group if len(earned[other]) > later]
        total += earned[row][later] - sum(there) / len(there)
    return total
