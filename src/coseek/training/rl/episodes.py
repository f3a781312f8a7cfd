"""Episodes: the runs of one step with their rewards, in groups. A group is one *occurrence* of a question in a step.

Group ids are assigned here. A question's index or text is no group id: it would merge two occurrences of a question, or
questions of two data sets with the same index, into one group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TypeAlias

from coseek.data.answers import exact_match
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.graders.scoring import EpisodeScorer
from coseek.rewards.reward import Reward, RewardFault
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
    mine = rollout(workers.stretch(asked), workers.stretch(seeds)) if workers.stretch(asked) else []
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
    rewards_N = workers.agree(partial(_rewards, runs, reward))
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
