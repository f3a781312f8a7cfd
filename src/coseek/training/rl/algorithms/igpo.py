"""IGPO: pays each turn what it adds to the policy's probability of the gold answer (Wang et al. 2025, arXiv
2510.14967).

The probability is exp of the mean log-probability of the gold answer's tokens, written as the next turn. With
`of: log` the difference is one of log-probabilities, the potential of TIPS (arXiv 2603.22293), here of the policy
itself. Costs a forward pass of every turn's context.
"""

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coseek.training.rl.algorithm import GroupSettings, StepRewards

if TYPE_CHECKING:
    from torch import Tensor


class IgpoSettings(GroupSettings):
    """Settings of IGPO."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of what is earned a turn later."""
    of: Literal["probability", "log"] = "probability"
    """Of what the gain is taken."""


SETTINGS = IgpoSettings


def advantages(step: StepRewards, settings: IgpoSettings) -> "Tensor":
    """Return at each turn the discounted sum of the gains from there on, standardised over all turns of the group; the
    last turn's gain is the reward. Shape BT."""
    import torch

    from coseek.training.rl.losses import group_advantages

    contexts = [(run, context) for run in step.trajectories for context in run.contexts]
    measured = iter(step.gold_logprobs(contexts))
    earned: list[list[float]] = []
    for row, run in enumerate(step.trajectories):
        levels = [next(measured) for _ in run.contexts]
        if settings.of == "probability":
            levels = [math.exp(level) for level in levels]
        gains = [after - before for before, after in pairwise(levels)]
        earned.append([*gains, float(step.charged_B[row])][: len(levels)])
    values = [[0.0] * len(gains) for gains in earned]
    for group in step.compared:
        lengths = [len(earned[row]) for row in group]
        standard = group_advantages(torch.tensor([gain for row in group for gain in earned[row]])).split(lengths)
        for row, gains_T in zip(group, standard, strict=True):
            later, total = [], 0.0
            for gain in reversed(gains_T.tolist()):
                total = gain + settings.gamma * total
                later.append(total)
            values[row] = later[::-1]
    return step.every_turn(values)
