"""Likelihood probe: the log-probability of right runs, before and after the updates of a step.

Group-relative updates can make right answers *less* likely: wrong runs share most of their tokens with right ones, and
lowering the likelihood of the former lowers that of the latter. On-policy metrics hide it, since sampled tokens are
likely by selection. So the probe measures the same runs before and after the updates.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coseek.data.answers import exact_match
from coseek.training.rl.episodes import ScoredEpisode
from coseek.training.trainer.batch import Batch
from coseek.training.trainer.learner import ForwardModel

RIGHT = 0.5
"""A run counts as right if its outcome is at least this."""


def outcome_of(episode: ScoredEpisode, metric: str) -> float:
    """Return a run's value of the metric that `monitor.outcome` names; 0 if it has none."""
    run = episode.trajectory
    if metric == "exact_match":
        return float(exact_match(run.answer, run.question.answers)) if run.question.answers else 0.0
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
