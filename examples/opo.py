"""OPO: GRPO with the baseline that makes the gradient's variance least (Hao et al. 2025, "On-Policy RL with Optimal
Reward Baseline"): the mean of a group's rewards, each weighted by its run's length.

    coseek train agent quickstart rl.algorithm=examples/opo.py --out runs/opo
"""

import torch

from coseek.training.rl.algorithm import GroupSettings, StepRewards

SETTINGS = GroupSettings


def advantages(step: StepRewards, settings: GroupSettings) -> torch.Tensor:
    """Shape BT: r - Σ length · r / Σ length inside a group, at every policy token."""
    lengths_B = step.mask_BT.sum(dim=1)
    advantages_B = torch.zeros(len(step.rewards_B))
    for group in step.groups:
        rows = list(group)
        rewards_G, lengths_G = step.rewards_B[rows], lengths_B[rows].clamp(min=1)
        advantages_B[rows] = (rewards_G - (lengths_G * rewards_G).sum() / lengths_G.sum()).float()
    return step.every_token(advantages_B)
