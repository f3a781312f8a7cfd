"""Likelihood of right runs: what the policy thinks of them as it writes, and what a step's updates do to that.

Group-relative updates can make right answers *less* likely: wrong runs share most of their tokens with right ones, and
pushing those down pulls the right ones along. On-policy readings hide it, since what is sampled is likely by selection;
so the same runs are looked at before and after the updates.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coseek.measure.answers import exact_match
from coseek.training.rl.episodes import ScoredEpisode
from coseek.training.trainer.batch import Batch
from coseek.training.trainer.learner import ForwardModel

RIGHT = 0.5
"""A run whose outcome is this or more counts as right."""


def outcome_of(episode: ScoredEpisode, metric: str) -> float:
    """How right a run is, by the metric that `monitor.outcome` names; 0 when it has none."""
    run = episode.trajectory
    if metric == "exact_match":
        return float(exact_match(run.answer, run.question.answers)) if run.question.answers else 0.0
    if metric == "reward":
        return episode.reward.value
    return episode.reward.parts.get(metric.removeprefix("reward/"), 0.0)


def right_rows(episodes: Sequence[ScoredEpisode], metric: str) -> Tensor:
    """Places of the runs that were right."""
    right = [place for place, episode in enumerate(episodes) if outcome_of(episode, metric) >= RIGHT]
    return torch.tensor(right, dtype=torch.long)


class LikelihoodProbe:
    """Right runs of a step, measured when it is made and again by `readings`."""

    def __init__(self, policy: ForwardModel, batch: Batch, right_N: Tensor, pushed_B: Tensor, runs: int) -> None:
        """Of the runs at `right_N`, the first `runs` that the updates push at (`pushed_B`) are looked at twice."""
        self._policy = policy
        right = batch.select(right_N) if len(right_N) else None
        self._written = None if right is None else _mean(right.logprobs_BT, right.agent_BT)
        chosen_N = right_N[pushed_B[right_N]][:runs]
        self._part = batch.select(chosen_N) if len(chosen_N) else None
        self._before = self._look()

    def readings(self) -> dict[str, float]:
        """`right_logprob`: mean log-probability of the right runs' tokens as they were sampled; `right_shift`: what the
        updates since then added to it, in nats a token. Without such runs there is no reading."""
        after = self._look()
        written = {} if self._written is None else {"right_logprob": self._written}
        return written if after is None or self._before is None else {**written, "right_shift": after - self._before}

    def _look(self) -> float | None:
        if self._part is None:
            return None
        return _mean(self._policy.forward(self._part, self._part.agent_BT), self._part.agent_BT)


def _mean(logprobs_BT: Tensor, mask_BT: Tensor) -> float:
    return float(logprobs_BT[mask_BT].double().mean())
