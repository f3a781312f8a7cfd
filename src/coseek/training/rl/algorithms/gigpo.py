"""GiGPO: adds to GRPO's advantage that of a turn among the turns of the group in the same state (Feng et al. 2025,
arXiv 2505.10978, section 4).

A turn's state is what its trajectory has read: the set of passages that its searches found before. It is the anchor
state of the paper, which compares observations of an environment.
"""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.training.rl.algorithm import StepRewards, TokenAdvantages, TurnSettings, discounted_returns


class GigpoSettings(TurnSettings):
    """Settings of GiGPO."""

    gamma: float = Field(default=0.95, gt=0, le=1)
    """Discount of a reward one turn later."""
    weight: float = Field(default=1.0, ge=0)
    """ω, the weight of the advantage among equal states."""
    scale_by_std: bool = True
    """Divide both by their group's standard deviation (false: the paper's F_norm = 1)."""


SETTINGS = GigpoSettings


def advantages(step: StepRewards, settings: GigpoSettings) -> TokenAdvantages:
    """Return A^E + ω A^S at each turn; shape BT. A state that no other turn of the group shares adds 0."""
    import torch

    from coseek.training.rl.losses import group_advantages, has_zero_std

    episode_B = step.standardised(settings.scale_by_std)
    values = [[float(episode_B[row])] * len(spans) for row, spans in enumerate(step.turn_spans)]
    returns, plain_returns = (
        [discounted_returns(rewards, settings.gamma) for rewards in step.turn_rewards(less_kl)]
        for less_kl in (True, False)
    )
    for group in step.comparable_groups:
        turns_by_state: dict[frozenset[str], list[tuple[int, int]]] = {}
        for row in group:
            for turn in range(len(returns[row])):
                turns_by_state.setdefault(state_of(step.trajectories[row], turn), []).append((row, turn))
        for turns in turns_by_state.values():
            plain_G = torch.tensor([plain_returns[row][turn] for row, turn in turns])
            # Equal returns differ by the KL's noise alone, which the division would scale up.
            if len(turns) > 1 and not (settings.scale_by_std and has_zero_std(plain_G)):
                returns_G = torch.tensor([returns[row][turn] for row, turn in turns])
                state_G = group_advantages(returns_G, scale=settings.scale_by_std)
                for (row, turn), advantage in zip(turns, state_G.tolist(), strict=True):
                    values[row][turn] += settings.weight * advantage
    return step.every_turn(values)


def state_of(trajectory: Trajectory, turn: int) -> frozenset[str]:
    """Return the ids of the hits of all searches before this turn (from 0)."""
    searches = (search for search in trajectory.searches if search.turn <= turn)
    return frozenset(hit.passage.id for search in searches for hit in search.hits)
