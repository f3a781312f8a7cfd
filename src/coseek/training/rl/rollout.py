"""Rollout: the trajectories of a step, sampled and scored in groups. A group is one *occurrence* of a question.

Group ids are assigned here. A question's index or text is no group id: it would merge two occurrences of a question, or
questions of two data sets with the same index, into one group.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TypeAlias

import torch
from torch import Tensor

from coseek.data.answers import can_match, exact_match
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.graders.scoring import TrajectoryScorer
from coseek.rewards.reward import Reward, RewardFault
from coseek.training.learner.data_order import QuestionStream, derive_seed
from coseek.training.learner.workers import ALONE, Workers
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.losses import has_zero_std
from coseek.training.rl.settings import OverlongSettings, RlSettings
from coseek.training.tracker import Timer

RolloutFunction: TypeAlias = Callable[[Sequence[Question], Sequence[int]], list[Trajectory]]
"""(questions, one seed each) → their trajectories in that order, sampled from the current policy."""
ScoreFunction: TypeAlias = Callable[[Trajectory], Reward | None] | TrajectoryScorer
"""A trajectory → its reward, or `None` if a part failed; or a `TrajectoryScorer`, which scores many at once."""


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A trajectory with its reward."""

    group: int
    trajectory: Trajectory
    reward: Reward
    sampled_at: int = 0
    """The policy's number of updates when the trajectory was sampled."""

    @property
    def version(self) -> int:
        """The oldest version of the weights that sampled a turn."""
        versions = [segment.version for segment in self.trajectory.segments if segment.version is not None]
        return min(versions, default=self.sampled_at)


@dataclass(frozen=True, slots=True)
class FailedTrajectory:
    """A trajectory in which a part failed. It has no reward and counts in no group."""

    group: int
    trajectory: Trajectory
    component: str
    """The component that failed: see `RewardFault`."""


@dataclass(frozen=True, slots=True)
class TrajectoryBatch:
    """The trajectories of a step."""

    scored: tuple[ScoredTrajectory, ...] = ()
    failed: tuple[FailedTrajectory, ...] = ()

    @property
    def episodes(self) -> tuple[ScoredTrajectory | FailedTrajectory, ...]:
        return (*self.scored, *self.failed)

    @property
    def faults(self) -> Counter[str]:
        """Number of failed trajectories, by component."""
        return Counter(episode.component for episode in self.failed)

    def rows_by_group(self) -> dict[int, list[int]]:
        """Return group id → indices into `scored`."""
        rows: dict[int, list[int]] = {}
        for row, episode in enumerate(self.scored):
            rows.setdefault(episode.group, []).append(row)
        return rows


def collect(
    questions: Sequence[Question],
    group_size: int,
    seeds: Sequence[int],
    rollout: RolloutFunction,
    workers: Workers = ALONE,
    unit: int = 1,
) -> tuple[list[int], list[Trajectory]]:
    """Sample `group_size` trajectories of each question. Returns the group of each trajectory, and the trajectories.

    Each worker samples one contiguous share, which keeps every `unit` rows together, and all workers receive all
    trajectories. A trajectory depends on its seed alone, not on the worker.
    """
    repeated = [question for question in questions for _ in range(group_size)]
    groups = [group for group in range(len(questions)) for _ in range(group_size)]
    share = workers.contiguous_share(repeated, unit)
    local = rollout(share, workers.contiguous_share(seeds, unit)) if share else []
    trajectories = [trajectory for shard in workers.gather(local) for trajectory in shard]
    if [trajectory.question.id for trajectory in trajectories] != [question.id for question in repeated]:
        raise ValueError(
            f"the rollout returned {len(trajectories)} runs, which are not those of the {len(repeated)} questions asked"
        )
    return groups, trajectories


def score(
    groups: Sequence[int], trajectories: Sequence[Trajectory], reward: ScoreFunction, workers: Workers = ALONE
) -> TrajectoryBatch:
    """Score the trajectories, and set apart those in which a part failed.

    The first worker scores for all: a judge may answer differently each time, and only one process may write a cache.
    """
    rewards = workers.broadcast(partial(_rewards, trajectories, reward))
    scored: list[ScoredTrajectory] = []
    failed: list[FailedTrajectory] = []
    for group, trajectory, reward_or_fault in zip(groups, trajectories, rewards, strict=True):
        if isinstance(reward_or_fault, RewardFault):
            failed.append(FailedTrajectory(group, trajectory, reward_or_fault.part))
        else:
            scored.append(ScoredTrajectory(group, trajectory, reward_or_fault))
    return TrajectoryBatch(tuple(scored), tuple(failed))


def _rewards(trajectories: Sequence[Trajectory], reward: ScoreFunction) -> list[Reward | RewardFault]:
    if isinstance(reward, TrajectoryScorer):
        return reward(trajectories)
    return [
        RewardFault(str(trajectory.fault[0])) if trajectory.fault else reward(trajectory) or RewardFault("reward")
        for trajectory in trajectories
    ]


def rollout_metrics(episodes: TrajectoryBatch) -> dict[str, float]:
    """Compute the metrics of a step that depend on its trajectories alone."""
    metrics: dict[str, float] = {
        "trajectories": len(episodes.episodes),
        "faults": len(episodes.failed),
        **{f"faults/{component}": count for component, count in sorted(episodes.faults.items())},
    }
    if not episodes.scored:
        return metrics
    trajectories = [episode.trajectory for episode in episodes.scored]
    rewards = [episode.reward for episode in episodes.scored]
    answerable = [trajectory for trajectory in trajectories if can_match(trajectory.question.answers)]
    if answerable:
        metrics["exact_match"] = fmean(exact_match(run.answer, run.question.answers) for run in answerable)
    metrics |= {
        "answered": fmean(trajectory.answered for trajectory in trajectories),
        "declined": fmean(trajectory.declined for trajectory in trajectories),
        "valid": fmean(trajectory.valid for trajectory in trajectories),
        "truncated": fmean(trajectory.truncated for trajectory in trajectories),
        "searches": fmean(len(trajectory.searches) for trajectory in trajectories),
        # Searches of turn 0 are the protocol's, not the agent's.
        "search_rate": fmean(any(search.turn != 0 for search in run.searches) for run in trajectories),
        "tokens": fmean(len(trajectory.ids) for trajectory in trajectories),
        "agent_tokens": fmean(trajectory.agent_tokens for trajectory in trajectories),
        "reward": fmean(reward.value for reward in rewards),
    }
    # A part that only some trajectories have (such as a judge's, asked in doubtful cases) is averaged over those.
    for name in sorted({name for reward in rewards for name in reward.parts}):
        metrics[f"reward/{name}"] = fmean(reward.parts[name] for reward in rewards if name in reward.parts)
    return metrics


# Overlong: a soft penalty on long trajectories (DAPO, Yu et al. 2025, eq. 13).

OVERLONG = "overlong"
"""Name of the penalty among the parts of a reward."""


def overlong_penalty(tokens: int, settings: OverlongSettings) -> float:
    """Return the penalty in [-1, 0]: 0 up to max - margin tokens, then linearly down to -1 at max tokens and beyond."""
    excess = tokens - (settings.max_tokens - settings.margin_tokens)
    return -min(1.0, max(0.0, excess / settings.margin_tokens))


def add_overlong_penalty(episodes: TrajectoryBatch, settings: OverlongSettings | None) -> TrajectoryBatch:
    """Add each trajectory's penalty to its reward, as a separate part; none without settings."""
    if settings is None:
        return episodes
    scored: list[ScoredTrajectory] = []
    for episode in episodes.scored:
        # Observations included: an agent shortens those by searching less.
        tokens_after_prompt = sum(len(segment.ids) for segment in episode.trajectory.segments[1:])
        penalty, reward = overlong_penalty(tokens_after_prompt, settings), episode.reward
        parts = {**reward.parts, OVERLONG: penalty}
        reward = replace(reward, value=reward.value + settings.weight * penalty, parts=parts)
        scored.append(replace(episode, reward=reward))
    return replace(episodes, scored=tuple(scored))


def row_rewards(episodes: TrajectoryBatch, settings: RlSettings) -> Tensor:
    """Return the reward of each scored trajectory, less its truncation penalty; shape B."""
    penalty = settings.truncation_penalty if settings.truncated == "penalise" else 0.0
    return torch.tensor(
        [episode.reward.value - penalty * episode.trajectory.truncated for episode in episodes.scored],
        dtype=torch.float64,
    )


# Sampling: the trajectories of one step. With `dynamic_sampling`, groups without spread are replaced by fresh questions
# (DAPO).
#
# Every question taken advances the position in the data, also when its group is dropped, so a resumed training takes
# the same questions. Metrics include the dropped groups: the mean reward of the kept groups alone would be biased.


@dataclass(frozen=True, slots=True)
class SampledStep:
    """The trajectories of one step."""

    episodes: TrajectoryBatch
    """All trajectories; metrics are computed on them."""
    kept: TrajectoryBatch
    """The trajectories to train on: all, or those of groups with spread."""
    questions: int
    """Questions taken from the data."""
    dropped: int | None
    """Groups without spread that were left out, not counting those of which faults left one trajectory or none; `None`
    without `dynamic_sampling`."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics of `dynamic_sampling`; empty without it."""
        if self.dropped is None:
            return {}
        return {
            "questions": self.questions,
            "groups_dropped": self.dropped,
            "frac_reward_zero_std": self.dropped / self.questions,
        }


def sample_step(
    step: int,
    stream: QuestionStream,
    position: int,
    settings: RlSettings,
    rollout: RolloutFunction,
    reward: ScoreFunction,
    backend: TrainingBackend,
    timer: Timer,
) -> SampledStep:
    """Sample and score the trajectories of step number `step`, whose questions begin at `position` of the stream.

    Takes one wave of questions. With `dynamic_sampling`, each further wave has as many questions as groups are
    missing, until `dynamic_sampling_max_factor` is reached.
    """
    needed = settings.questions_per_step
    max_questions = int(settings.dynamic_sampling_max_factor * needed) if settings.dynamic_sampling else needed
    waves: list[TrajectoryBatch] = []
    taken = 0
    kept_groups: set[int] = set()
    while len(kept_groups) < needed and taken < max_questions:
        count = min(needed - len(kept_groups), max_questions - taken)
        questions, seeds = stream.take(position + taken, count), rollout_seeds(step, taken, count, settings)
        with timer("rollout_s"):
            groups, trajectories = collect(
                questions, settings.group_size, seeds, rollout, backend.workers, settings.rows_together
            )
        with timer("reward_s"):
            wave = score([taken + group for group in groups], trajectories, reward, backend.workers)
            wave = add_overlong_penalty(wave, settings.overlong)
        waves.append(wave)
        taken += count
        kept_groups |= groups_with_spread(wave, settings) if settings.dynamic_sampling else set(groups)
    updates = backend.policy.updates_done
    episodes = TrajectoryBatch(
        scored=tuple(replace(episode, sampled_at=updates) for wave in waves for episode in wave.scored),
        failed=tuple(episode for wave in waves for episode in wave.failed),
    )
    if not settings.dynamic_sampling:
        return SampledStep(episodes, episodes, taken, None)
    kept = tuple(episode for episode in episodes.scored if episode.group in kept_groups)
    dropped = [rows for group, rows in episodes.rows_by_group().items() if len(rows) > 1 and group not in kept_groups]
    return SampledStep(episodes, replace(episodes, scored=kept), taken, len(dropped))


def rollout_seeds(step: int, first: int, count: int, settings: RlSettings) -> list[int]:
    """Return a seed for each trajectory of a step's questions `first` … `first + count - 1`."""
    numbers = range(first * settings.group_size, (first + count) * settings.group_size)
    return [derive_seed(settings.seed, "rollout", step, number) for number in numbers]


def groups_with_spread(episodes: TrajectoryBatch, settings: RlSettings) -> set[int]:
    """Return the groups whose rewards differ. A group that faults reduced to one trajectory has no spread."""
    rewards_B = row_rewards(episodes, settings)
    return {group for group, rows in episodes.rows_by_group().items() if not has_zero_std(rewards_B[rows])}
