"""Update: the optimisation of one step (minibatches, policy loss, KL, value loss, and their metrics), and the probe of
its effect on right trajectories."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from coseek.data.answers import exact_match
from coseek.training.learner.batch import Batch
from coseek.training.learner.learner import ForwardModel, Loss
from coseek.training.learner.logprobs import Entropy
from coseek.training.learner.workers import Workers
from coseek.training.rl.algorithm import Algorithm
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.experience import Experience, TokenRecord
from coseek.training.rl.losses import kl_estimate, loss_weights, ratios, value_loss
from coseek.training.rl.policy_loss import LossBatch, PolicyLoss, open_policy_loss
from coseek.training.rl.rollout import ScoredTrajectory
from coseek.training.rl.settings import RlSettings


@dataclass(slots=True)
class MetricAverager:
    """Means and maxima over the tokens of many micro-batches."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: int = 1) -> None:
        """Add `count` values, of which `total` is the sum, to the mean `name`."""
        self.sums[name] = self.sums.get(name, 0.0) + total
        self.counts[name] = self.counts.get(name, 0) + count

    def add_max(self, name: str, value: float) -> None:
        self.maxima[name] = max(self.maxima.get(name, -math.inf), value)

    def add_tokens(self, name: str, values_BT: Tensor, mask_BT: Tensor, *, with_max: bool = False) -> None:
        """Add the values where the mask is True to the mean `name`, and `with_max` to the maximum `name_max`."""
        values_N = values_BT[mask_BT]
        self.add(name, float(values_N.sum()), values_N.numel())
        if with_max and values_N.numel():
            self.add_max(f"{name}_max", float(values_N.max()))

    def merge(self, workers: Workers) -> None:
        """Merge the averagers of all workers, each of which saw its own micro-batches."""
        merged = MetricAverager()
        for other in workers.gather(self):
            for name, total in other.sums.items():
                merged.add(name, total, other.counts[name])
            for name, maximum in other.maxima.items():
                merged.add_max(name, maximum)
        self.sums, self.counts, self.maxima = merged.sums, merged.counts, merged.maxima

    def result(self) -> dict[str, float]:
        return {name: total / self.counts[name] for name, total in self.sums.items() if self.counts[name]} | self.maxima


def update_weights(
    experience: Experience,
    settings: RlSettings,
    algorithm: Algorithm,
    backend: TrainingBackend,
    rng: random.Random,
    record: TokenRecord | None = None,
) -> dict[str, float]:
    """Run all updates of a step. Returns their metrics; `record` takes the first outputs at each token."""
    policy, critic = backend.policy, backend.critic
    entropy, policy_loss = _entropy_mode(settings), open_policy_loss(settings)
    metrics = MetricAverager()
    updates = 0
    for epoch in range(settings.epochs):
        # A group's weight is 1 over its tokens, so its rows are one update's.
        whole_groups = settings.loss_agg_mode == "group-mean"
        for rows_B in minibatches(experience, settings.num_minibatches, rng, algorithm.drops_zero_std, whole_groups):
            weights_BT = minibatch_weights(experience, settings, rows_B)
            target_mask_BT = (weights_BT != 0.0) & ~experience.zero_grad_B[:, None]
            if not bool(target_mask_BT.any()):
                continue
            staleness_B = (policy.updates_done - experience.sampled_at_B[rows_B]).float()
            metrics.add_tokens("staleness", staleness_B, torch.ones_like(staleness_B).bool(), with_max=True)
            # In a later epoch another worker may run a row, without the record of its first pass.
            first = record if epoch == 0 else None
            loss = _minibatch_loss(experience, settings, policy_loss, weights_BT, metrics, updates, first)
            metrics.add("loss", policy.forward_backward(experience.batch, target_mask_BT, loss, entropy))
            if not math.isnan(norm := policy.optim_step()):
                metrics.add("grad_norm", norm)
            if critic is not None:
                loss = _value_loss(experience, algorithm.value_clip, weights_BT)
                metrics.add("value_loss", critic.forward_backward(experience.batch, target_mask_BT, loss))
                metrics.add("critic_grad_norm", critic.optim_step())
            updates += 1
    metrics.merge(backend.workers)
    if record is not None:
        record.all_reduce(backend.workers)
    return {"updates": updates, **metrics.result(), **_value_fit(experience)}


def _entropy_mode(settings: RlSettings) -> Entropy:
    """Return whether the policy computes its entropy, and whether with a gradient."""
    return "with_grad" if settings.entropy_coef > 0.0 else "detached" if settings.measure_entropy else "off"


def logprob_gap(policy: ForwardModel, batch: Batch, rows: int) -> dict[str, float]:
    """Return mean and maximum |trainer's - sampler's log-probability| over agent tokens of the first `rows` rows."""
    first_rows = batch.select(torch.arange(min(rows, len(batch))))
    gap_BT = (policy.forward(first_rows, first_rows.agent_BT) - first_rows.logprobs_BT).abs()
    metrics = MetricAverager()
    metrics.add_tokens("logprob_gap", gap_BT, first_rows.agent_BT, with_max=True)
    return metrics.result()


def minibatches(
    experience: Experience, count: int, rng: random.Random, drop_zero_std: bool = False, whole_groups: bool = False
) -> list[Tensor]:
    """Shuffle the rows in the loss, or their groups, and split them into at most `count` minibatches of about equal
    size."""
    units: dict[int, list[int]] = {}
    for row in cast(list[int], rows_in_loss(experience, drop_zero_std).tolist()):
        units.setdefault(int(experience.groups_B[row]) if whole_groups else row, []).append(row)
    shuffled = rng.sample([*units.values()], k=len(units))
    count = min(count, len(units))
    return [torch.tensor([*chain.from_iterable(shuffled[start::count])]) for start in range(count)]


def rows_in_loss(experience: Experience, drop_zero_std: bool) -> Tensor:
    """Return the indices of the rows that count in the loss."""
    in_loss_B = experience.mask_BT.any(dim=1)
    if drop_zero_std:
        in_loss_B = in_loss_B & ~experience.zero_std_B
    return in_loss_B.nonzero()[:, 0]


def minibatch_weights(experience: Experience, settings: RlSettings, rows_B: Tensor) -> Tensor:
    """Return the loss weights of a minibatch, over all rows of the step: 0 outside the minibatch."""
    in_minibatch_B = torch.zeros(len(experience.batch), dtype=torch.bool)
    in_minibatch_B[rows_B] = True
    mask_BT = experience.mask_BT & in_minibatch_B[:, None]
    return loss_weights(mask_BT, settings.loss_agg_mode, settings.loss_scale_factor, experience.groups_B)


def _minibatch_loss(
    experience: Experience,
    settings: RlSettings,
    policy_loss: PolicyLoss,
    weights_BT: Tensor,
    metrics: MetricAverager,
    updates: int,
    record: TokenRecord | None,
) -> Loss:
    """Return the loss of a minibatch after `updates` updates of the step: the policy loss, β KL if it is charged to the
    loss, and the entropy bonus."""
    has_entropy = _entropy_mode(settings) != "off"

    def loss(outputs: Tensor, rows_b: Tensor) -> Tensor:
        new_bt, entropy_bt = outputs if has_entropy else (outputs, None)

        def select(whole_BT: Tensor) -> Tensor:
            return _select_rows(whole_BT, rows_b, new_bt)

        weights_bt, old_bt = select(weights_BT), select(experience.old_BT)
        mask_bt = weights_bt != 0.0
        advantages_bt = select(experience.advantages_BT)
        token_bt = policy_loss(LossBatch.of(new_bt, old_bt, advantages_bt, mask_bt, settings))
        if experience.importance_BT is not None:
            importance_bt = select(experience.importance_BT)
            token_bt = token_bt * importance_bt
            metrics.add_tokens("rollout_is", importance_bt, mask_bt)
            cut_bt = (importance_bt == 0.0) | (importance_bt >= settings.rollout_is_threshold)
            metrics.add_tokens("rollout_is_cut", cut_bt.float(), mask_bt)
        if experience.reference_BT is not None:
            reference_bt = select(experience.reference_BT)
            kl_bt = kl_estimate(new_bt, reference_bt, mask_bt, settings.kl_estimator, settings.kl_clamp)
            if settings.kl_location == "loss":
                token_bt = token_bt + settings.kl_coef * kl_bt
            metrics.add_tokens("kl_reference", kl_estimate(new_bt.detach(), reference_bt, mask_bt, "k3"), mask_bt)
        if entropy_bt is not None:
            token_bt = token_bt - settings.entropy_coef * entropy_bt
            metrics.add_tokens("entropy", entropy_bt.detach(), mask_bt)
        if record is not None:
            record.add(rows_b, new_bt, entropy_bt, updates)
        if updates == 0:
            gap_bt = (new_bt.detach() - select(experience.batch.logprobs_BT)).abs()
            metrics.add_tokens("logprob_gap", gap_bt, mask_bt, with_max=True)
        _add_ratio_metrics(metrics, new_bt.detach(), old_bt, mask_bt, settings, policy_loss.clips_tokens)
        return (token_bt * weights_bt).sum()

    return loss


def _add_ratio_metrics(
    metrics: MetricAverager, new_bt: Tensor, old_bt: Tensor, mask_bt: Tensor, settings: RlSettings, clips_tokens: bool
) -> None:
    ratio_bt = ratios(new_bt, old_bt, mask_bt)
    if clips_tokens:
        outside_bt = (ratio_bt > 1.0 + settings.clip_ratio_high) | (ratio_bt < 1.0 - settings.clip_ratio_low)
        metrics.add_tokens("clip_frac", outside_bt.float(), mask_bt)
    metrics.add_tokens("ratio", ratio_bt, mask_bt, with_max=True)
    metrics.add_tokens("kl_old", kl_estimate(old_bt, new_bt, mask_bt, "k3"), mask_bt)


def _select_rows(whole_BT: Tensor, rows_b: Tensor, outputs_bt: Tensor) -> Tensor:
    """Return the rows of a micro-batch, cut to its width and on its device."""
    return whole_BT[rows_b, : outputs_bt.shape[1]].to(outputs_bt.device)


def _value_loss(experience: Experience, clip: float | None, weights_BT: Tensor) -> Loss:
    assert experience.values_BT is not None and experience.returns_BT is not None
    old_BT, returns_BT = experience.values_BT, experience.returns_BT

    def loss(values_bt: Tensor, rows_b: Tensor) -> Tensor:
        weights_bt, old_bt, returns_bt = (
            _select_rows(whole_BT, rows_b, values_bt) for whole_BT in (weights_BT, old_BT, returns_BT)
        )
        token_bt = value_loss(values_bt, old_bt, returns_bt, weights_bt != 0.0, clip)
        return (token_bt * weights_bt).sum()

    return loss


def _value_fit(experience: Experience) -> dict[str, float]:
    """Return the mean value and the explained variance, 1 - Var(R - V) / Var(R), over policy tokens before the update.

    An explained variance of 1 is a perfect critic, 0 a constant one.
    """
    if experience.values_BT is None or experience.returns_BT is None:
        return {}
    returns_N = experience.returns_BT[experience.mask_BT]
    error_N = returns_N - experience.values_BT[experience.mask_BT]
    spread = float(returns_N.var(correction=0))
    fit = {"value": float(experience.values_BT[experience.mask_BT].mean())}
    return fit | ({"explained_variance": 1.0 - float(error_N.var(correction=0)) / spread} if spread > 0.0 else {})


# Likelihood probe: the log-probability of right trajectories, before and after the updates of a step.
#
# Group-relative updates can make right answers *less* likely: wrong trajectories share most of their tokens with right
# ones, and lowering the likelihood of the former lowers that of the latter. On-policy metrics hide it, since sampled
# tokens are likely by selection. So the probe measures the same trajectories before and after the updates.

RIGHT = 0.5
"""A trajectory counts as right if its outcome is at least this."""


def outcome_of(episode: ScoredTrajectory, metric: str) -> float:
    """Return the value of the metric that `monitor.outcome` names; 0 without one."""
    trajectory = episode.trajectory
    if metric == "exact_match":
        return float(exact_match(trajectory.answer, trajectory.question.answers))
    if metric == "reward":
        return episode.reward.value
    return episode.reward.parts.get(metric.removeprefix("reward/"), 0.0)


def right_rows(episodes: Sequence[ScoredTrajectory], metric: str) -> Tensor:
    """Return the rows of the right trajectories."""
    rows = [row for row, episode in enumerate(episodes) if outcome_of(episode, metric) >= RIGHT]
    return torch.tensor(rows, dtype=torch.long)


class LikelihoodProbe:
    """Measures right trajectories of a step when it is created and again in `metrics`."""

    def __init__(self, policy: ForwardModel, batch: Batch, right_N: Tensor, updated_B: Tensor, limit: int) -> None:
        """Measure the first `limit` of the rows `right_N` that have a gradient (`updated_B`)."""
        self._policy = policy
        right = batch.select(right_N) if len(right_N) else None
        self._sampled = None if right is None else _masked_mean(right.logprobs_BT, right.agent_BT)
        probed_N = right_N[updated_B[right_N]][:limit]
        self._probed = batch.select(probed_N) if len(probed_N) else None
        self._before = self._measure()

    def metrics(self) -> dict[str, float]:
        """Measure again. `right_logprob`: mean log-probability of the right trajectories' tokens when sampled.
        `right_shift`: its change by the updates since then, in nats per token. A metric without trajectories is left
        out."""
        after = self._measure()
        sampled = {} if self._sampled is None else {"right_logprob": self._sampled}
        return sampled if after is None or self._before is None else {**sampled, "right_shift": after - self._before}

    def _measure(self) -> float | None:
        if self._probed is None:
            return None
        return _masked_mean(self._policy.forward(self._probed, self._probed.agent_BT), self._probed.agent_BT)


def _masked_mean(logprobs_BT: Tensor, mask_BT: Tensor) -> float:
    return float(logprobs_BT[mask_BT].double().mean())
