"""Episodes: how the runs of one step are sampled and scored, in groups. A group is one *occurrence* of a question.

Group ids are assigned here. A question's index or text is no group id: it would merge two occurrences of a question, or
questions of two data sets with the same index, into one group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TypeAlias

import torch
from torch import Tensor

from coseek.data.answers import exact_match
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.graders.scoring import EpisodeScorer
from coseek.rewards.reward import Reward, RewardFault
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.settings import OverlongSettings, RlSettings
from coseek.training.tracker import Timer
from coseek.training.trainer.data_order import QuestionStream, derive_seed
from coseek.training.trainer.workers import ALONE, Workers

RolloutFunction: TypeAlias = Callable[[Sequence[Question], Sequence[int]], list[Trajectory]]
"""(questions, one seed each) → their trajectories in that order, sampled from the current policy."""
ScoreFunction: TypeAlias = Callable[[Trajectory], Reward | None] | EpisodeScorer
"""A finished trajectory → its reward, or `None` if a part failed; or an `EpisodeScorer`, which scores many at once."""


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """A run with its reward."""

    group: int
    trajectory: Trajectory
    reward: Reward
    sampled_at: int = 0
    """The policy's number of updates when the run was sampled."""

    @property
    def version(self) -> int:
        """The oldest version of the weights that sampled a turn of the run."""
        versions = [segment.version for segment in self.trajectory.segments if segment.version is not None]
        return min(versions, default=self.sampled_at)


@dataclass(frozen=True, slots=True)
class EpisodeBatch:
    """The scored runs of a step, and the counts of those that failed."""

    scored: tuple[ScoredEpisode, ...]
    faults: Mapping[str, int]
    """Number of runs in which a part failed, by part. They have no reward and are in no group."""
    timings: Mapping[str, float]
    """Seconds that the runs report for their parts, summed."""
    failed: tuple[tuple[int, Trajectory], ...] = ()
    """The runs that failed, each with its group."""

    @property
    def runs(self) -> int:
        return len(self.scored) + sum(self.faults.values())

    def members(self) -> dict[int, list[int]]:
        """Return group id → indices into `scored`."""
        members: dict[int, list[int]] = {}
        for place, episode in enumerate(self.scored):
            members.setdefault(episode.group, []).append(place)
        return members


def collect(
    questions: Sequence[Question],
    group_size: int,
    seeds: Sequence[int],
    rollout: RolloutFunction,
    workers: Workers = ALONE,
) -> tuple[list[int], list[Trajectory]]:
    """Run each question `group_size` times. Returns the group of each run, and the runs.

    Each worker runs one contiguous share, and all workers receive all runs. A run depends on its seed alone, not on the
    worker.
    """
    asked = [question for question in questions for _ in range(group_size)]
    groups = [group for group in range(len(questions)) for _ in range(group_size)]
    mine = (
        rollout(workers.contiguous_share(asked), workers.contiguous_share(seeds))
        if workers.contiguous_share(asked)
        else []
    )
    runs = [run for part in workers.gather(mine) for run in part]
    if [run.question.id for run in runs] != [question.id for question in asked]:
        raise ValueError(
            f"the rollout returned {len(runs)} runs, which are not those of the {len(asked)} questions asked"
        )
    return groups, runs


def score(
    groups: Sequence[int], runs: Sequence[Trajectory], reward: ScoreFunction, workers: Workers = ALONE
) -> EpisodeBatch:
    """Score the runs. Those in which a part failed are counted and left out.

    The first worker scores for all: a judge may answer differently each time, and only one process may write a cache.
    """
    rewards_N = workers.broadcast(partial(_rewards, runs, reward))
    scored: list[ScoredEpisode] = []
    failed: list[tuple[int, Trajectory]] = []
    faults: dict[str, int] = {}
    timings: dict[str, float] = {}
    for group, run, reward_or_fault in zip(groups, runs, rewards_N, strict=True):
        for name, seconds in run.timings.items():
            timings[name] = timings.get(name, 0.0) + seconds
        if isinstance(reward_or_fault, RewardFault):
            faults[reward_or_fault.part] = faults.get(reward_or_fault.part, 0) + 1
            failed.append((group, run))
        else:
            scored.append(ScoredEpisode(group, run, reward_or_fault))
    return EpisodeBatch(tuple(scored), faults, timings, tuple(failed))


def _rewards(runs: Sequence[Trajectory], reward: ScoreFunction) -> list[Reward | RewardFault]:
    if isinstance(reward, EpisodeScorer):
        return reward(runs)
    return [RewardFault(str(run.fault[0])) if run.fault else reward(run) or RewardFault("reward") for run in runs]


def describe(episodes: EpisodeBatch) -> dict[str, float]:
    """Compute the metrics of a step that depend on the runs alone."""
    described: dict[str, float] = {
        "runs": episodes.runs,
        "faults": sum(episodes.faults.values()),
        **{f"faults/{stop}": count for stop, count in sorted(episodes.faults.items())},
    }
    if episodes.scored:
        described.update(_means([episode.trajectory for episode in episodes.scored]))
        described.update(_reward_means([episode.reward for episode in episodes.scored]))
    return described


def _means(runs: Sequence[Trajectory]) -> dict[str, float]:
    right = [exact_match(run.answer, run.question.answers) for run in runs if run.question.answers]
    return {
        **({"exact_match": fmean(right)} if right else {}),
        "answered": fmean(run.answer is not None for run in runs),
        "declined": fmean(run.declined for run in runs),
        "valid": fmean(run.valid for run in runs),
        "truncated": fmean(run.truncated for run in runs),
        "searches": fmean(len(run.searches) for run in runs),
        # Searches of turn 0 are the protocol's, not the agent's.
        "search_rate": fmean(any(search.turn != 0 for search in run.searches) for run in runs),
        "tokens": fmean(sum(len(segment.ids) for segment in run.segments) for run in runs),
        "agent_tokens": fmean(run.agent_tokens for run in runs),
    }


def _reward_means(rewards: Sequence[Reward]) -> dict[str, float]:
    names = sorted({name for reward in rewards for name in reward.parts})
    # A part that only some runs have (such as a judge's, asked in doubtful cases) is averaged over those.
    parts = {
        f"reward/{name}": fmean(reward.parts[name] for reward in rewards if name in reward.parts) for name in names
    }
    return {"reward": fmean(reward.value for reward in rewards), **parts}


# Overlong: a soft penalty on long runs (DAPO, Yu et al. 2025, eq. 13).

PART = "overlong"
"""Name of the penalty among the parts of a reward."""


def overlong(tokens: int, settings: OverlongSettings) -> float:
    """Return the penalty in [-1, 0]: 0 up to max - margin tokens, then linearly down to -1 at max tokens and beyond."""
    over = tokens - (settings.max_tokens - settings.margin_tokens)
    return -min(1.0, max(0.0, over / settings.margin_tokens))


def written_tokens(run: Trajectory) -> int:
    """Count the tokens after the prompt, observations included: an agent shortens those by searching less."""
    return sum(len(segment.ids) for segment in run.segments[1:])


def charge_overlong(episodes: EpisodeBatch, settings: OverlongSettings) -> EpisodeBatch:
    """Add each run's penalty to its reward, as a separate part."""
    scored = tuple(
        replace(
            episode, reward=_charged(episode.reward, overlong(written_tokens(episode.trajectory), settings), settings)
        )
        for episode in episodes.scored
    )
    return replace(episodes, scored=scored)


def _charged(reward: Reward, part: float, settings: OverlongSettings) -> Reward:
    parts: Mapping[str, float] = {**reward.parts, PART: part}
    return replace(reward, value=reward.value + settings.weight * part, parts=parts)


def row_rewards(episodes: EpisodeBatch, settings: RlSettings) -> Tensor:
    """Return the reward of each scored run, less its truncation penalty; shape B."""
    penalty = settings.truncation_penalty if settings.truncated == "penalise" else 0.0
    return torch.tensor(
        [episode.reward.value - penalty * episode.trajectory.truncated for episode in episodes.scored],
        dtype=torch.float64,
    )


def is_flat(rewards_G: Tensor) -> bool:
    """Whether all rewards of the group are equal."""
    return bool((rewards_G.max() - rewards_G.min()) <= 1e-6)


# Sampling: the runs of one step. With `dynamic_sampling`, groups without spread are replaced by fresh questions
# (DAPO).
#
# Every question taken advances the position in the data, also when its group is dropped, so a resumed run takes the
# same questions. Metrics include the dropped groups: the mean reward of the kept groups alone would be biased.


@dataclass(frozen=True, slots=True)
class SampledStep:
    """The runs of one step."""

    episodes: EpisodeBatch
    """All runs; metrics are computed on them."""
    kept: EpisodeBatch
    """The runs to train on: all, or those of groups with spread."""
    questions: int
    """Questions taken from the data."""
    dropped: int | None
    """Groups without spread that were left out; `None` without `dynamic_sampling`."""

    def describe(self) -> dict[str, float]:
        """Return the metrics of resampling; empty without `dynamic_sampling`."""
        if self.dropped is None:
            return {}
        return {
            "questions": self.questions,
            "groups_dropped": self.dropped,
            "zero_spread": self.dropped / self.questions,
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
    """Sample and score the runs of step number `step`, whose questions begin at `position` of the stream.

    Takes one wave of questions. With `dynamic_sampling`, each further wave has as many questions as groups are
    missing, until `dynamic_sampling_at_most` is reached.
    """
    wanted = settings.questions_per_step
    most = int(settings.dynamic_sampling_at_most * wanted) if settings.dynamic_sampling else wanted
    waves: list[EpisodeBatch] = []
    asked = 0
    kept: set[int] = set()
    while len(kept) < wanted and asked < most:
        count = min(wanted - len(kept), most - asked)
        seeds = rollout_seeds(step, asked, count, settings)
        with timer("rollout_s"):
            groups, runs = collect(
                stream.take(position + asked, count), settings.group_size, seeds, rollout, backend.workers
            )
        with timer("reward_s"):
            wave = score([asked + group for group in groups], runs, reward, backend.workers)
            if settings.overlong is not None:
                wave = charge_overlong(wave, settings.overlong)
        waves.append(wave)
        asked += count
        kept |= groups_with_spread(wave, settings) if settings.dynamic_sampling else set(groups)
    episodes = _joined(waves, backend.policy.updates_done)
    if not settings.dynamic_sampling:
        return SampledStep(episodes, episodes, asked, None)
    remaining = tuple(episode for episode in episodes.scored if episode.group in kept)
    return SampledStep(episodes, replace(episodes, scored=remaining), asked, asked - len(kept))


def rollout_seeds(step: int, asked: int, count: int, settings: RlSettings) -> list[int]:
    """Return a seed for each run of a step's questions `asked` … `asked + count - 1`."""
    places = range(asked * settings.group_size, (asked + count) * settings.group_size)
    return [derive_seed(settings.seed, "rollout", step, place) for place in places]


def groups_with_spread(episodes: EpisodeBatch, settings: RlSettings) -> set[int]:
    """Return the groups whose rewards differ. A group that faults reduced to one run has no spread."""
    rewards_B = row_rewards(episodes, settings)
    return {group for group, places in episodes.members().items() if not is_flat(rewards_B[places])}


def _joined(waves: Sequence[EpisodeBatch], update: int) -> EpisodeBatch:
    """Merge the waves of a step, and mark each run with the policy's number of updates when it was sampled."""
    faults: dict[str, int] = {}
    timings: dict[str, float] = {}
    for wave in waves:
        for part, count in wave.faults.items():
            faults[part] = faults.get(part, 0) + count
        for name, seconds in wave.timings.items():
            timings[name] = timings.get(name, 0.0) + seconds
    scored = tuple(replace(episode, sampled_at=update) for wave in waves for episode in wave.scored)
    return EpisodeBatch(scored, faults, timings, tuple(one for wave in waves for one in wave.failed))
