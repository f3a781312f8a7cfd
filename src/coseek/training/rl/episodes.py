"""Episodes: one step's runs with their rewards, in groups. A group is one *occurrence* of a question in a step.

Its id is minted here. Taking a question's index or text for it would merge two occurrences, or two data sets' fifth
questions, into one group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TypeAlias

from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.graders.scoring import EpisodeScorer
from coseek.measure.answers import exact_match
from coseek.rewards.reward import Reward, RewardFault
from coseek.training.trainer.workers import ALONE, Workers

RolloutFunction: TypeAlias = Callable[[Sequence[Question], Sequence[int]], list[Trajectory]]
"""(questions, a seed for each) → their trajectories in that order, sampled from the policy as it is now."""
ScoreFunction: TypeAlias = Callable[[Trajectory], Reward | None] | EpisodeScorer
"""A finished trajectory → its reward, `None` for a run in which a part failed; or what scores a step's runs at once."""


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """A run that was scored."""

    group: int
    trajectory: Trajectory
    reward: Reward
    sampled_at: int = 0
    """Updates that the policy had had when it wrote this."""


@dataclass(frozen=True, slots=True)
class EpisodeBatch:
    """The scored runs of a step, and how many there should have been."""

    scored: tuple[ScoredEpisode, ...]
    faults: Mapping[str, int]
    """Runs in which a part failed, by what failed: no reward, no place in a group."""
    timings: Mapping[str, float]
    """Seconds that the runs report of their parts, summed."""

    @property
    def runs(self) -> int:
        return len(self.scored) + sum(self.faults.values())

    def members(self) -> dict[int, list[int]]:
        """Group id → places in `scored`."""
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
    """Run each question `group_size` times; returns the group of each run, and the runs.

    Each worker runs a stretch of them and gets to know all. A run follows from its seed, whoever runs it.
    """
    asked = [question for question in questions for _ in range(group_size)]
    groups = [group for group in range(len(questions)) for _ in range(group_size)]
    mine = rollout(workers.stretch(asked), workers.stretch(seeds)) if workers.stretch(asked) else []
    runs = [run for part in workers.gather(mine) for run in part]
    if [run.question.id for run in runs] != [question.id for question in asked]:
        raise ValueError(f"the rollout gave {len(runs)} runs that are not those of the {len(asked)} questions asked")
    return groups, runs


def score(
    groups: Sequence[int], runs: Sequence[Trajectory], reward: ScoreFunction, workers: Workers = ALONE
) -> EpisodeBatch:
    """Score the runs; those in which a part failed are counted and left out.

    The first worker scores for all: a judge need not say the same twice, and only one may write to a cache.
    """
    found_N = workers.agree(partial(_rewards, runs, reward))
    scored: list[ScoredEpisode] = []
    faults: dict[str, int] = {}
    timings: dict[str, float] = {}
    for group, run, found in zip(groups, runs, found_N, strict=True):
        for name, seconds in run.timings.items():
            timings[name] = timings.get(name, 0.0) + seconds
        if isinstance(found, RewardFault):
            faults[found.part] = faults.get(found.part, 0) + 1
        else:
            scored.append(ScoredEpisode(group, run, found))
    return EpisodeBatch(tuple(scored), faults, timings)


def _rewards(runs: Sequence[Trajectory], reward: ScoreFunction) -> list[Reward | RewardFault]:
    if isinstance(reward, EpisodeScorer):
        return reward(runs)
    return [RewardFault(str(run.fault[0])) if run.fault else reward(run) or RewardFault("reward") for run in runs]


def describe(episodes: EpisodeBatch) -> dict[str, float]:
    """The step's metrics that follow from the runs alone."""
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
        "valid": fmean(run.valid for run in runs),
        "truncated": fmean(run.truncated for run in runs),
        "searches": fmean(len(run.searches) for run in runs),
        # Not the search that opens a run: that one the protocol makes.
        "search_rate": fmean(any(search.turn != 0 for search in run.searches) for run in runs),
        "tokens": fmean(sum(len(segment.ids) for segment in run.segments) for run in runs),
        "agent_tokens": fmean(run.agent_tokens for run in runs),
    }


def _reward_means(rewards: Sequence[Reward]) -> dict[str, float]:
    names = sorted({name for reward in rewards for name in reward.parts})
    # What only some runs have (a judge is asked where words do not settle it) is a mean over those.
    parts = {
        f"reward/{name}": fmean(reward.parts[name] for reward in rewards if name in reward.parts) for name in names
    }
    return {"reward": fmean(reward.value for reward in rewards), **parts}
