"""Experience: the scored episodes of a step as a batch with advantages, fixed before the first update; and what the
updates computed at each token."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coseek.data.run import RowKey
from coseek.data.token_data import TokenData, agent_spans, finite
from coseek.training.rl.algorithm import Algorithm, GoldProbe, StepRewards
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.losses import importance_weights, kl_estimate
from coseek.training.rl.rollout import EpisodeBatch, ScoredEpisode, is_flat, row_rewards
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.batch import Batch, make_batch
from coseek.training.trainer.workers import Workers


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
    episodes: EpisodeBatch,
    settings: RlSettings,
    algorithm: Algorithm,
    backend: TrainingBackend | None,
    gold_probe: GoldProbe | None = None,
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
        gold_probe=gold_probe,
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


def _kl_in_reward(old_BT: Tensor, reference_BT: Tensor | None, mask_BT: Tensor, settings: RlSettings) -> Tensor:
    """Return β · KL estimate per token if the settings charge it to the reward, else 0; shape BT."""
    if reference_BT is None or settings.kl_in != "reward":
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
        """Take the outputs of a micro-batch of the first epoch, in which each row has one pass on one worker."""
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

    episodes: EpisodeBatch
    """Those that the experience was made of."""
    experience: Experience
    record: TokenRecord
    trained_B: Tensor
    """True for rows that count in the loss."""
    recomputed: bool
    """Whether the old log-probabilities are the trainer's (`old_logprobs: recompute`)."""

    def places(self) -> dict[RowKey, int]:
        """Question and seed of each episode → its row."""
        runs = (episode.trajectory for episode in self.episodes.scored)
        return {(run.question.id, run.seed): place for place, run in enumerate(runs)}

    def data(self, place: int) -> TokenData:
        """The token data of the episode in a row."""
        episode = self.episodes.scored[place]
        written_T = self.experience.batch.agent_BT[place]
        passes = int(self.record.passes_B[place])
        logprobs_BT = self.experience.old_BT if self.recomputed else self.record.logprobs_BT
        updates = 0 if self.recomputed else passes - 1

        def values(whole_BT: Tensor, known: bool = True) -> list[float]:
            return whole_BT[place][written_T].tolist() if known else []

        return replace(
            reward_data(episode),
            trained=bool(self.trained_B[place]),
            spans=agent_spans(episode.trajectory),
            advantages=finite(values(self.experience.advantages_BT)),
            # The trainer's float32 says no more, and a gap is a small difference of two such numbers.
            trainer_logprobs=finite(values(logprobs_BT, updates >= 0), lambda value: round(value, 6)),
            updates=updates if updates >= 0 else None,
            entropies=finite(values(self.record.entropy_BT, self.record.has_entropy and passes > 0)),
        )


def reward_data(episode: ScoredEpisode) -> TokenData:
    """The token data of an episode that is not learnt from: its reward alone."""
    run, reward = episode.trajectory, episode.reward
    (value,) = finite([reward.value])
    parts = dict(zip(reward.parts, finite(reward.parts.values()), strict=True))
    return TokenData(run.question.id, run.seed, episode.group, value, parts)
