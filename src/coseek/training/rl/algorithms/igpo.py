"""IGPO: pays each turn what it adds to the policy's probability of the gold answer (Wang et al. 2025, arXiv
2510.14967).

The probability is exp of the mean log-probability of the gold answer's tokens, written as the next turn. With
`of: log` the difference is one of log-probabilities, the potential of TIPS (arXiv 2603.22293), here of the policy
itself. Costs a forward pass of every turn's context.
"""

import math
from itertools import pairwise
from typing import Literal

from pydantic import Field

from coseek.training.rl.algorithm import StepRewards, TokenAdvantages, TurnSettings, discounted_returns


class IgpoSettings(TurnSettings):
    """Settings of IGPO."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of a gain one turn later."""
    of: Literal["probability", "log"] = "probability"
    """Of what the gain is taken."""


SETTINGS = IgpoSettings


def advantages(step: StepRewards, settings: IgpoSettings) -> TokenAdvantages:
    """Return at each turn the discounted sum of the gains from there on, standardised over all turns of the group; the
    last turn's gain is the reward. Shape BT."""
    import torch

    from coseek.training.rl.losses import group_advantages, has_zero_std

    contexts = [(trajectory, context) for trajectory in step.trajectories for context in trajectory.contexts]
    logprobs = iter(step.gold_logprobs(contexts))
    gains: list[list[float]] = []
    for row, trajectory in enumerate(step.trajectories):
        potentials = [next(logprobs) for _ in trajectory.contexts]
        if settings.of == "probability":
            potentials = [math.exp(logprob) for logprob in potentials]
        differences = [after - before for before, after in pairwise(potentials)]
        gains.append([*differences, float(step.rewards_B[row])][: len(potentials)])
    values = [[0.0] * len(row_gains) for row_gains in gains]
    kl_B = step.rewards_B - step.rewards_less_kl_B
    for group in step.comparable_groups:
        lengths = [len(gains[row]) for row in group]
        if not any(lengths) or has_zero_std(torch.tensor([gain for row in group for gain in gains[row]])):
            continue  # their spread would be the KL's noise
        for row in group:
            gains[row][-1:] = [gain - float(kl_B[row]) for gain in gains[row][-1:]]
        standardised = group_advantages(torch.tensor([gain for row in group for gain in gains[row]])).split(lengths)
        for row, gains_T in zip(group, standardised, strict=True):
            values[row] = discounted_returns(gains_T.tolist(), settings.gamma)
    return step.every_turn(values)
