"""Update: the optimisation of one step: minibatches, clipped policy loss, KL, value loss, and their metrics; and the
probe of what an update does to right runs."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from coseek.data.answers import exact_match
from coseek.training.rl.algorithm import Algorithm
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.experience import Experience, TokenRecord
from coseek.training.rl.losses import kl_estimate, loss_weights, ratios, value_loss
from coseek.training.rl.policy_loss import LossBatch, PolicyLoss, open_policy_loss
from coseek.training.rl.rollout import ScoredEpisode
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.batch import Batch
from coseek.training.trainer.learner import ForwardModel, Loss
from coseek.training.trainer.logprobs import Entropy
from coseek.training.trainer.workers import Workers


@dataclass(slots=True)
class MetricAverager:
    """Means and maxima over the tokens of many micro-batches."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def tokens(self, name: str, values_BT: Tensor, mask_BT: Tensor) -> None:
        """Add the values where the mask is True to the mean `name`."""
        chosen_N = values_BT[mask_BT]
        self.sums[name] = self.sums.get(name, 0.0) + float(chosen_N.sum())
        self.counts[name] = self.counts.get(name, 0) + chosen_N.numel()

    def number(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value
        self.counts[name] = self.counts.get(name, 0) + 1

    def largest(self, name: str, values_BT: Tensor, mask_BT: Tensor) -> None:
        chosen_N = values_BT[mask_BT]
        if chosen_N.numel():
            self.maxima[name] = max(self.maxima.get(name, -float("inf")), float(chosen_N.max()))

    def add(self, workers: Workers) -> None:
        """Merge the averagers of all workers, each of which saw its own micro-batches."""
        whole = MetricAverager()
        for other in workers.gather(self):
            for name, total in other.sums.items():
                whole.sums[name] = whole.sums.get(name, 0.0) + total
                whole.counts[name] = whole.counts.get(name, 0) + other.counts[name]
            for name, most in other.maxima.items():
                whole.maxima[name] = max(whole.maxima.get(name, -float("inf")), most)
        self.sums, self.counts, self.maxima = whole.sums, whole.counts, whole.maxima

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
    entropy, policy_loss = _entropy(settings), open_policy_loss(settings)
    metrics = MetricAverager()
    updates = 0
    for epoch in range(settings.epochs):
        # A group's weight is 1 over its tokens, so its rows are one update's.
        whole = settings.loss_agg_mode == "group-mean"
        for rows_B in minibatches(experience, settings.num_minibatches, rng, algorithm.drops_zero_spread, whole):
            weights_BT = minibatch_weights(experience, settings, rows_B)
            wanted_BT = (weights_BT != 0.0) & ~experience.silent_B[:, None]
            if not bool(wanted_BT.any()):
                continue
            _add_staleness(metrics, experience, rows_B, policy.updates_done)
            # A later epoch brings a row to another worker, which knows nothing of its first pass.
            first = record if epoch == 0 else None
            loss = _policy_loss(experience, settings, policy_loss, weights_BT, metrics, updates, first)
            metrics.number("loss", policy.forward_backward(experience.batch, wanted_BT, loss, entropy))
            if not math.isnan(norm := policy.optim_step()):
                metrics.number("grad_norm", norm)
            if critic is not None:
                loss = _value_loss(experience, algorithm.value_clip, weights_BT)
                metrics.number("value_loss", critic.forward_backward(experience.batch, wanted_BT, loss))
                metrics.number("critic_grad_norm", critic.optim_step())
            updates += 1
    metrics.add(backend.workers)
    if record is not None:
        record.all_reduce(backend.workers)
    return {"updates": updates, **metrics.result(), **_value_fit(experience)}


def _entropy(settings: RlSettings) -> Entropy:
    """Return whether the policy computes its entropy, and whether with a gradient."""
    return "trained" if settings.entropy > 0.0 else "seen" if settings.measure_entropy else "no"


def _add_staleness(metrics: MetricAverager, experience: Experience, rows_B: Tensor, update: int) -> None:
    """Record the staleness of rows: the number of updates since they were sampled."""
    staleness_B = (update - experience.sampled_at_B[rows_B]).float()
    metrics.tokens("staleness", staleness_B, torch.ones_like(staleness_B).bool())
    metrics.largest("staleness_max", staleness_B, torch.ones_like(staleness_B).bool())


def logprob_gap(policy: ForwardModel, batch: Batch, rows: int) -> dict[str, float]:
    """Return mean and maximum |trainer's - sampler's log-probability| over agent tokens of the first `rows` rows."""
    few = batch.select(torch.arange(min(rows, len(batch))))
    gap_BT = (policy.forward(few, few.agent_BT) - few.logprobs_BT).abs()
    metrics = MetricAverager()
    metrics.tokens("logprob_gap", gap_BT, few.agent_BT)
    metrics.largest("logprob_gap_max", gap_BT, few.agent_BT)
    return metrics.result()


def minibatches(
    experience: Experience, most: int, rng: random.Random, drop_zero_spread: bool = False, whole_groups: bool = False
) -> list[Tensor]:
    """Shuffle the rows that count, or their groups, and split them into at most `most` minibatches of about equal
    size."""
    units: dict[int, list[int]] = {}
    for row in cast(list[int], counted_rows(experience, drop_zero_spread).tolist()):
        units.setdefault(int(experience.groups_B[row]) if whole_groups else row, []).append(row)
    shuffled = rng.sample([*units.values()], k=len(units))
    count = min(most, len(units))
    return [torch.tensor([*chain.from_iterable(shuffled[part::count])]) for part in range(count)]


def counted_rows(experience: Experience, drop_zero_spread: bool) -> Tensor:
    """Return the indices of the rows that count in the loss."""
    counted_B = experience.mask_BT.any(dim=1)
    if drop_zero_spread:
        counted_B = counted_B & ~experience.flat_B
    return counted_B.nonzero()[:, 0]


def minibatch_weights(experience: Experience, settings: RlSettings, rows_B: Tensor) -> Tensor:
    """Return the loss weights of a minibatch, over all rows of the step: 0 outside the minibatch."""
    here_B = torch.zeros(len(experience.batch), dtype=torch.bool)
    here_B[rows_B] = True
    mask_BT = experience.mask_BT & here_B[:, None]
    return loss_weights(mask_BT, settings.loss_agg_mode, settings.constant_tokens, experience.groups_B)


def _policy_loss(
    experience: Experience,
    settings: RlSettings,
    policy_loss: PolicyLoss,
    weights_BT: Tensor,
    metrics: MetricAverager,
    updates: int,
    record: TokenRecord | None,
) -> Loss:
    """Return the policy loss, with β KL if it is charged to the loss, and the entropy bonus, after this
    many updates of the step."""

    def loss(outputs: Tensor, rows_b: Tensor) -> Tensor:
        new_bt, entropy_bt = outputs if _entropy(settings) != "no" else (outputs, None)

        def part(whole_BT: Tensor) -> Tensor:
            return whole_BT[rows_b, : new_bt.shape[1]].to(new_bt.device)

        weights_bt, old_bt = part(weights_BT), part(experience.old_BT)
        mask_bt = weights_bt != 0.0
        advantages_bt = part(experience.advantages_BT)
        token_bt = policy_loss(LossBatch.of(new_bt, old_bt, advantages_bt, mask_bt, settings))
        if experience.importance_BT is not None:
            importance_bt = part(experience.importance_BT)
            token_bt = token_bt * importance_bt
            metrics.tokens("importance", importance_bt, mask_bt)
            cut_bt = (importance_bt == 0.0) | (importance_bt >= settings.importance_cap)
            metrics.tokens("importance_cut", cut_bt.float(), mask_bt)
        if experience.reference_BT is not None:
            reference_bt = part(experience.reference_BT)
            kl_bt = kl_estimate(new_bt, reference_bt, mask_bt, settings.kl_estimator, settings.kl_clamp)
            if settings.kl_in == "loss":
                token_bt = token_bt + settings.kl_coef * kl_bt
            metrics.tokens("kl_reference", kl_estimate(new_bt.detach(), reference_bt, mask_bt, "k3"), mask_bt)
        if entropy_bt is not None:
            token_bt = token_bt - settings.entropy * entropy_bt
            metrics.tokens("entropy", entropy_bt.detach(), mask_bt)
        if record is not None:
            record.add(rows_b, new_bt, entropy_bt, updates)
        if updates == 0:
            gap_bt = (new_bt.detach() - part(experience.batch.logprobs_BT)).abs()
            metrics.tokens("logprob_gap", gap_bt, mask_bt)
            metrics.largest("logprob_gap_max", gap_bt, mask_bt)
        _describe(metrics, new_bt.detach(), old_bt, mask_bt, settings)
        return (token_bt * weights_bt).sum()

    return loss


def _describe(metrics: MetricAverager, new_bt: Tensor, old_bt: Tensor, mask_bt: Tensor, settings: RlSettings) -> None:
    ratio_bt = ratios(new_bt, old_bt, mask_bt)
    outside_bt = (ratio_bt > 1.0 + settings.clip_ratio_high) | (ratio_bt < 1.0 - settings.clip_ratio_low)
    metrics.tokens("clip_frac", outside_bt.float(), mask_bt)
    metrics.tokens("ratio", ratio_bt, mask_bt)
    metrics.largest("ratio_max", ratio_bt, mask_bt)
    metrics.tokens("kl_old", kl_estimate(old_bt, new_bt, mask_bt, "k3"), mask_bt)


def _value_loss(experience: Experience, clip: float | None, weights_BT: Tensor) -> Loss:
    assert experience.values_BT is not None and experience.returns_BT is not None
    old_BT, returns_BT = experience.values_BT, experience.returns_BT

    def loss(values_bt: Tensor, rows_b: Tensor) -> Tensor:
        def part(whole_BT: Tensor) -> Tensor:
            return whole_BT[rows_b, : values_bt.shape[1]].to(values_bt.device)

        weights_bt = part(weights_BT)
        token_bt = value_loss(values_bt, part(old_BT), part(returns_BT), weights_bt != 0.0, clip)
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


# Likelihood probe: the log-probability of right runs, before and after the updates of a step.
#
# Group-relative updates can make right answers *less* likely: wrong runs share most of their tokens with right ones,
# and lowering the likelihood of the former lowers that of the latter. On-policy metrics hide it, since sampled tokens
# are likely by selection. So the probe measures the same runs before and after the updates.

RIGHT = 0.5
"""A run counts as right if its outcome is at least this."""


def outcome_of(episode: ScoredEpisode, metric: str) -> float:
    """Return a run's value of the metric that `monitor.outcome` names; 0 if it has none."""
    run = episode.trajectory
    if metric == "exact_match":
        return float(exact_match(run.answer, run.question.answers))
    if metric == "reward":
        return episode.reward.value
    return episode.reward.parts.get(metric.removeprefix("reward/"), 0.0)


def right_rows(episodes: Sequence[ScoredEpisode], metric: str) -> Tensor:
    """Return the indices of the right runs."""
    right = [place for place, episode in enumerate(episodes) if outcome_of(episode, metric) >= RIGHT]
    return torch.tensor(right, dtype=torch.long)


class LikelihoodProbe:
    """Measures right runs of a step when it is created and again in `metrics`."""

    def __init__(self, policy: ForwardModel, batch: Batch, right_N: Tensor, updated_B: Tensor, runs: int) -> None:
        """Measure the first `runs` of the runs `right_N` that have a gradient (`updated_B`)."""
        self._policy = policy
        right = batch.select(right_N) if len(right_N) else None
        self._sampled = None if right is None else _mean(right.logprobs_BT, right.agent_BT)
        chosen_N = right_N[updated_B[right_N]][:runs]
        self._part = batch.select(chosen_N) if len(chosen_N) else None
        self._before = self._measure()

    def metrics(self) -> dict[str, float]:
        """Measure again. `right_logprob`: mean log-probability of the right runs' tokens when sampled. `right_shift`:
        its change by the updates since then, in nats per token. A metric without runs is left out."""
        after = self._measure()
        sampled = {} if self._sampled is None else {"right_logprob": self._sampled}
        return sampled if after is None or self._before is None else {**sampled, "right_shift": after - self._before}

    def _measure(self) -> float | None:
        if self._part is None:
            return None
        return _mean(self._policy.forward(self._part, self._part.agent_BT), self._part.agent_BT)


def _mean(logprobs_BT: Tensor, mask_BT: Tensor) -> float:
    return float(logprobs_BT[mask_BT].double().mean())
