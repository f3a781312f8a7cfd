"""Experience: the scored trajectories of a step as a batch with advantages, fixed before the first update; and the
outputs of the updates at each token."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coseek.core.plugins import is_plugin_path
from coseek.data.run import RowKey
from coseek.data.token_data import TokenData, agent_spans, finite
from coseek.training.learner.batch import Batch, make_batch
from coseek.training.learner.workers import Workers
from coseek.training.rl.algorithm import Algorithm, GoldProbe, StepRewards
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.losses import importance_weights, kl_estimate, zero_std_rows
from coseek.training.rl.rollout import ScoredTrajectory, TrajectoryBatch, row_rewards
from coseek.training.rl.settings import RlSettings


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
    zero_std_B: Tensor
    """Rows of groups without spread: all have the same reward, not counting a KL in the reward."""
    zero_grad_B: Tensor
    """Rows whose gradient is known to be zero: they count in the divisor of the loss, and no pass is run for them."""
    sampled_at_B: Tensor
    """The policy's number of updates when the row was sampled."""
    frac_reward_zero_std: float
    """Share of groups whose rewards are all equal."""
    singleton_groups: int
    """Groups that faults reduced to a single trajectory, which has no baseline."""
    importance_BT: Tensor | None = None
    """Weight of a token's policy loss for a sampler that is not the trainer; `None` without a correction."""


def make_experience(
    episodes: TrajectoryBatch,
    settings: RlSettings,
    algorithm: Algorithm,
    backend: TrainingBackend | None,
    gold_probe: GoldProbe | None = None,
) -> Experience:
    """Make a batch with advantages from scored trajectories. Without a backend there is no reference and no critic, and
    the old policy is the sampler's."""
    policy, critic, reference = (backend.policy, backend.critic, backend.reference) if backend else (None,) * 3
    trajectories = tuple(episode.trajectory for episode in episodes.scored)
    batch = make_batch(trajectories)
    # A masked trajectory still counts in its group's mean.
    in_loss_B = torch.tensor([settings.truncated != "mask" or not trajectory.truncated for trajectory in trajectories])
    mask_BT = batch.agent_BT & in_loss_B[:, None]
    recomputes = settings.old_logprobs == "recompute"
    old_BT = policy.forward(batch, batch.agent_BT) if policy and recomputes else batch.logprobs_BT
    # A masked trajectory's reward, which counts in its group's mean, is charged the KL as well.
    kl_mask_BT = batch.agent_BT if settings.kl_location == "reward" else mask_BT
    reference_BT = reference.forward(batch, kl_mask_BT) if reference else None
    rewards_B = row_rewards(episodes, settings)
    groups = [*episodes.rows_by_group().values()]
    zero_std_B = zero_std_rows(rewards_B, groups, settings.group_size)
    step = StepRewards(
        rewards_B,
        _kl_penalty(old_BT, reference_BT, kl_mask_BT, settings),
        mask_BT,
        groups=tuple(map(tuple, groups)),
        group_size=settings.group_size,
        zero_std_B=zero_std_B,
        values_BT=critic.forward(batch, mask_BT) if critic else None,
        trajectories=trajectories,
        rewards_of_turns=tuple(episode.reward.turns for episode in episodes.scored),
        gold_probe=gold_probe,
    )
    estimates = algorithm.advantages(step)
    importance_BT = None
    if settings.rollout_is != "off":
        kind, cap = settings.rollout_is, settings.rollout_is_threshold
        importance_BT = importance_weights(old_BT, batch.logprobs_BT, batch.agent_BT, kind, cap)
    has_kl_loss = reference is not None and settings.kl_location == "loss"
    has_entropy = settings.entropy_coef > 0.0 or settings.measure_entropy  # whose mean is over all rows
    has_other_terms = critic is not None or has_entropy or has_kl_loss or is_plugin_path(settings.policy_loss)
    return Experience(
        batch=batch,
        mask_BT=mask_BT,
        groups_B=torch.tensor([episode.group for episode in episodes.scored]),
        advantages_BT=estimates.advantages_BT,
        old_BT=old_BT,
        reference_BT=reference_BT,
        values_BT=step.values_BT,
        returns_BT=estimates.returns_BT,
        zero_std_B=zero_std_B,
        zero_grad_B=(estimates.advantages_BT == 0.0).all(dim=1) & (not has_other_terms),
        sampled_at_B=torch.tensor([episode.version for episode in episodes.scored]),
        frac_reward_zero_std=sum(bool(zero_std_B[rows[0]]) for rows in groups) / len(groups),
        singleton_groups=sum(len(rows) == 1 for rows in groups) if settings.group_size > 1 else 0,
        importance_BT=importance_BT,
    )


def _kl_penalty(old_BT: Tensor, reference_BT: Tensor | None, mask_BT: Tensor, settings: RlSettings) -> Tensor:
    """Return β · KL estimate per token if the settings charge it to the reward, else 0; shape BT."""
    if reference_BT is None or settings.kl_location != "reward":
        return torch.zeros_like(old_BT)
    return settings.kl_coef * kl_estimate(old_BT, reference_BT, mask_BT, settings.kl_estimator, settings.kl_clamp)


# Token record: the inputs and the first outputs of a step's losses at each token. It costs no pass of its own.


class TokenRecord:
    """Outputs of the first pass of the updates over each row of a batch; 0 where there was none."""

    def __init__(self, experience: Experience) -> None:
        shape = experience.batch.ids_BT.shape
        self.logprobs_BT = torch.zeros(shape)
        self.entropy_BT = torch.zeros(shape)
        self.passes_B = torch.zeros(shape[0], dtype=torch.long)
        """0 without a pass, else one more than the updates before it."""
        self.has_entropy = False

    def add(self, rows_b: Tensor, logprobs_bt: Tensor, entropy_bt: Tensor | None, updates: int) -> None:
        """Record the outputs of a micro-batch of the first epoch, in which each row has one pass on one worker."""
        width = logprobs_bt.shape[1]
        self.logprobs_BT[rows_b, :width] = logprobs_bt.detach().cpu()
        self.passes_B[rows_b] = updates + 1
        if entropy_bt is not None:
            self.entropy_BT[rows_b, :width] = entropy_bt.detach().cpu()
            self.has_entropy = True

    def all_reduce(self, workers: Workers) -> None:
        """Merge the records of all workers, each of which ran its own micro-batches."""
        for tensor in (self.logprobs_BT, self.entropy_BT, self.passes_B):
            workers.all_reduce(tensor)
        self.has_entropy = any(workers.gather(self.has_entropy))


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The experience of a step with the record of its updates."""

    episodes: TrajectoryBatch
    """The trajectories that the experience was made of."""
    experience: Experience
    record: TokenRecord
    trained_B: Tensor
    """True for rows that count in the loss."""
    recomputed: bool
    """Whether the old log-probabilities are the trainer's (`old_logprobs: recompute`)."""

    def row_of(self) -> dict[RowKey, int]:
        """Return the row of each trajectory, by question and seed."""
        trajectories = (episode.trajectory for episode in self.episodes.scored)
        return {(trajectory.question.id, trajectory.seed): row for row, trajectory in enumerate(trajectories)}

    def token_data(self, row: int) -> TokenData:
        """Return the token data of the trajectory in a row."""
        episode = self.episodes.scored[row]
        agent_T = self.experience.batch.agent_BT[row]
        passes = int(self.record.passes_B[row])
        logprobs_BT = self.experience.old_BT if self.recomputed else self.record.logprobs_BT
        updates = 0 if self.recomputed else passes - 1

        def values(whole_BT: Tensor, is_known: bool = True) -> list[float]:
            return whole_BT[row][agent_T].tolist() if is_known else []

        return replace(
            reward_data(episode),
            trained=bool(self.trained_B[row]),
            spans=agent_spans(episode.trajectory),
            advantages=finite(values(self.experience.advantages_BT)),
            # Float32 has no more digits, and a gap is a small difference of two such numbers.
            trainer_logprobs=finite(values(logprobs_BT, updates >= 0), lambda value: round(value, 6)),
            updates=updates if updates >= 0 else None,
            entropies=finite(values(self.record.entropy_BT, self.record.has_entropy and passes > 0)),
        )


def reward_data(episode: ScoredTrajectory) -> TokenData:
    """Return the token data of a trajectory that is not trained on: its reward alone."""
    trajectory, reward = episode.trajectory, episode.reward
    (value,) = finite([reward.value])
    parts = dict(zip(reward.parts, finite(reward.parts.values()), strict=True))
    return TokenData(trajectory.question.id, trajectory.seed, episode.group, value, parts)
