"""Experience: the scored episodes of a step as a batch with advantages, fixed before the first update."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coseek.training.rl.algorithm import Algorithm, StepRewards
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.episodes import EpisodeBatch
from coseek.training.rl.losses import importance_weights, kl_estimate
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.batch import Batch, make_batch


@dataclass(frozen=True, slots=True)
class Experience:
    """The batch of a step with all inputs of its losses. Every `_BT` tensor is fixed before the first update."""

    batch: Batch
    mask_BT: Tensor
    """True at the tokens in the loss: the agent's, without those of rows that a setting masks."""
    groups_B: Tensor
    advantages_BT: Tensor
    old_BT: Tensor
    """Log-probabilities under the old policy."""
    reference_BT: Tensor | None
    values_BT: Tensor | None
    returns_BT: Tensor | None
    flat_B: Tensor
    """Rows of groups without spread: all runs have the same reward, not counting a KL in the reward."""
    silent_B: Tensor
    """Rows whose gradient is known to be zero: they count in the divisor of the loss, and no pass is run for them."""
    sampled_at_B: Tensor
    """The policy's number of updates when the row was sampled."""
    zero_spread: float
    """Share of groups whose rewards are all equal."""
    lone: int
    """Groups that faults reduced to a single run, which has no baseline."""
    importance_BT: Tensor | None = None
    """Weight of a token's policy loss for a sampler that is not the trainer; `None` without a correction."""


def make_experience(
    episodes: EpisodeBatch, settings: RlSettings, algorithm: Algorithm, backend: TrainingBackend | None
) -> Experience:
    """Make a batch with advantages from scored runs. Without a backend there is no reference and no critic, and the old
    policy is the sampler's."""
    policy, critic, reference = (backend.policy, backend.critic, backend.reference) if backend else (None,) * 3
    batch = make_batch([episode.trajectory for episode in episodes.scored])
    mask_BT = batch.agent_BT & _counted(episodes, settings)[:, None]
    recomputed = policy if settings.old_logprobs == "recompute" else None
    old_BT = batch.logprobs_BT if recomputed is None else recomputed.forward(batch, batch.agent_BT)
    # A masked run counts in its group's mean, so the KL that its reward is charged counts there too.
    charged_BT = batch.agent_BT if settings.kl_in == "reward" else mask_BT
    reference_BT = reference.forward(batch, charged_BT) if reference else None
    rewards_B = row_rewards(episodes, settings)
    flat_B = _flat(rewards_B, episodes, settings)
    penalty_BT = _kl_in_reward(old_BT, reference_BT, charged_BT, settings)
    members = episodes.members()
    values_BT = critic.forward(batch, mask_BT) if critic else None
    step = StepRewards(
        rewards_B,
        penalty_BT,
        mask_BT,
        groups=tuple(map(tuple, members.values())),
        group_size=settings.group_size,
        flat_B=flat_B,
        values_BT=values_BT,
        trajectories=tuple(episode.trajectory for episode in episodes.scored),
        rewards_of_turns=tuple(episode.reward.turns for episode in episodes.scored),
    )
    estimates = algorithm.advantages(step)
    advantages_BT = estimates.advantages_BT
    has_other_terms = (
        critic is not None or settings.entropy > 0.0 or (reference is not None and settings.kl_in == "loss")
    )
    silent_B = torch.zeros(len(batch)).bool() if has_other_terms else (advantages_BT == 0.0).all(dim=1)
    return Experience(
        batch=batch,
        mask_BT=mask_BT,
        groups_B=torch.tensor([episode.group for episode in episodes.scored]),
        advantages_BT=advantages_BT,
        old_BT=old_BT,
        reference_BT=reference_BT,
        values_BT=values_BT,
        returns_BT=estimates.returns_BT,
        flat_B=flat_B,
        silent_B=silent_B,
        sampled_at_B=torch.tensor([episode.version for episode in episodes.scored]),
        zero_spread=sum(bool(flat_B[places[0]]) for places in members.values()) / len(members),
        lone=sum(len(places) == 1 for places in members.values()) if settings.group_size > 1 else 0,
        importance_BT=_importance(old_BT, batch, settings),
    )


def _importance(old_BT: Tensor, batch: Batch, settings: RlSettings) -> Tensor | None:
    if settings.importance == "off":
        return None
    return importance_weights(old_BT, batch.logprobs_BT, batch.agent_BT, settings.importance, settings.importance_cap)


def _flat(rewards_B: Tensor, episodes: EpisodeBatch, settings: RlSettings) -> Tensor:
    """Mark the rows of groups without spread. With `group_size` 1 no row is flat."""
    flat_B = torch.zeros(len(rewards_B), dtype=torch.bool)
    for places in episodes.members().values():
        flat_B[places] = settings.group_size > 1 and is_flat(rewards_B[places])
    return flat_B


def _counted(episodes: EpisodeBatch, settings: RlSettings) -> Tensor:
    """Return False for rows that are left out of the loss. A masked run still counts in its group's mean."""
    if settings.truncated != "mask":
        return torch.ones(len(episodes.scored), dtype=torch.bool)
    return torch.tensor([not episode.trajectory.truncated for episode in episodes.scored])


def row_rewards(episodes: EpisodeBatch, settings: RlSettings) -> Tensor:
    """Return the reward of each scored run, less its truncation penalty; shape B."""
    penalty = settings.truncation_penalty if settings.truncated == "penalise" else 0.0
    return torch.tensor(
        [episode.reward.value - penalty * episode.trajectory.truncated for episode in episodes.scored],
        dtype=torch.float64,
    )


def _kl_in_reward(old_BT: Tensor, reference_BT: Tensor | None, mask_BT: Tensor, settings: RlSettings) -> Tensor:
    """Return β · KL estimate per token if the settings charge it to the reward, else 0; shape BT."""
    if reference_BT is None or settings.kl_in != "reward":
        return torch.zeros_like(old_BT)
    return settings.kl_coef * kl_estimate(old_BT, reference_BT, mask_BT, settings.kl_estimator, settings.kl_clamp)


def is_flat(rewards_G: Tensor) -> bool:
    """Whether all rewards of the group are equal."""
    return bool((rewards_G.max() - rewards_G.min()) <= 1e-6)
