"""GiGPO: adds to GRPO's advantage that of a turn among the turns which the group's runs made in the same state
(Feng et al. 2025, arXiv 2505.10978, section 4).

A turn's state is what its run has read: the set of passages that its searches found before. It is the anchor state of
the paper, which compares observations of an environment.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.training.rl.algorithm import GroupSettings, StepRewards

if TYPE_CHECKING:
    from torch import Tensor


class GigpoSettings(GroupSettings):
    """Settings of GiGPO."""

    gamma: float = Field(default=0.95, gt=0, le=1)
    """Discount of what is earned a turn later."""
    weight: float = Field(default=1.0, ge=0)
    """ω, the weight of the advantage among equal states."""
    scale_by_std: bool = True
    """Divide both by their group's standard deviation (false: the paper's F_norm = 1)."""


SETTINGS = GigpoSettings


def advantages(step: StepRewards, settings: GigpoSettings) -> "Tensor":
    """Return A^E + ω A^S at each turn; shape BT. A state that no other turn of the group shares adds 0."""
    import torch

    from coseek.training.rl.losses import group_advantages

    whole_B = step.compare_groups(lambda rewards_G: group_advantages(rewards_G, scale=settings.scale_by_std))
    values = [[float(whole_B[row])] * len(turns) for row, turns in enumerate(step.turn_spans)]
    returns = [_discounted(turns, settings.gamma) for turns in step.turn_rewards()]
    for group in step.compared:
        alike: dict[frozenset[str], list[tuple[int, int]]] = {}
        for row in group:
            for turn in range(len(returns[row])):
                alike.setdefault(read_before(step.trajectories[row], turn), []).append((row, turn))
        for places in alike.values():
            if len(places) > 1:
                returns_G = torch.tensor([returns[row][turn] for row, turn in places])
                local_G = group_advantages(returns_G, scale=settings.scale_by_std)
                for (row, turn), local in zip(places, local_G.tolist(), strict=True):
                    values[row][turn] += settings.weight * local
    return step.every_turn(values)


def read_before(run: Trajectory, turn: int) -> frozenset[str]:
    """Ids of the passages that searches before this turn (from 0) found."""
    return frozenset(hit.passage.id for search in run.searches if (search.turn or 0) <= turn for hit in search.hits)


def _discounted(rewards: list[float], gamma: float) -> list[float]:
    """Σ_{k≥t} γ^(k-t) r_k of each turn."""
    totals, later = [], 0.0
    for reward in reversed(rewards):
        later = reward + gamma * later
        totals.append(later)
    return totals[::-1]
