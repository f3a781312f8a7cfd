"""Sampling: the runs of one step. With `dynamic_sampling`, groups without spread are replaced by fresh questions
(DAPO).

Every question taken advances the position in the data, also when its group is dropped, so a resumed run takes the same
questions. Metrics include the dropped groups: the mean reward of the kept groups alone would be biased.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.episodes import EpisodeBatch, RolloutFunction, ScoreFunction, collect, score
from coseek.training.rl.experience import is_flat, row_rewards
from coseek.training.rl.overlong import charge_overlong
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.data_order import QuestionStream, derive_seed
from coseek.training.trainer.metrics import Timer


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
