"""Sampling: a step's runs. With `resample`, groups that taught nothing are replaced by fresh questions (DAPO).

Every question taken counts towards the position in the data, dropped or not, so a resumed run asks what it would have
asked. What was dropped is still reported: rewards of the groups that happened to have spread are no honest mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.episodes import EpisodeBatch, RolloutFunction, ScoreFunction, collect, score
from coseek.training.rl.experience import is_flat, row_rewards
from coseek.training.rl.overlong import charge_overlong
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.data_order import QuestionStream, derive_seed
from coseek.training.trainer.timer import Timer


@dataclass(frozen=True, slots=True)
class SampledStep:
    """What a step's questions brought."""

    episodes: EpisodeBatch
    """All runs: what metrics speak of."""
    kept: EpisodeBatch
    """The runs to learn from: all, or the groups with spread."""
    questions: int
    """Questions taken from the data."""
    dropped: int | None
    """Groups without spread that were left out; None where none are looked for."""

    def describe(self) -> dict[str, float]:
        """Metrics of resampling, where it is on."""
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

    One wave of questions; with `resample`, further waves of as many as groups are missing, until `resample_at_most`.
    """
    wanted = settings.questions_per_step
    most = int(settings.resample_at_most * wanted) if settings.resample else wanted
    waves: list[EpisodeBatch] = []
    asked = 0
    kept: set[int] = set()
    while len(kept) < wanted and asked < most:
        count = min(wanted - len(kept), most - asked)
        places = range(asked * settings.group_size, (asked + count) * settings.group_size)
        seeds = [derive_seed(settings.seed, "rollout", step, place) for place in places]
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
        kept |= groups_with_spread(wave, settings) if settings.resample else set(groups)
    episodes = _joined(waves, backend.policy.updates_done)
    if not settings.resample:
        return SampledStep(episodes, episodes, asked, None)
    left = tuple(episode for episode in episodes.scored if episode.group in kept)
    return SampledStep(episodes, replace(episodes, scored=left), asked, asked - len(kept))


def groups_with_spread(episodes: EpisodeBatch, settings: RlSettings) -> set[int]:
    """Groups in which some runs are paid otherwise than others; a run that faults left alone has no other."""
    rewards_B = row_rewards(episodes, settings)
    return {group for group, places in episodes.members().items() if not is_flat(rewards_B[places])}


def _joined(waves: Sequence[EpisodeBatch], update: int) -> EpisodeBatch:
    """One step of several waves, each run marked with how often the policy had been updated before it wrote it."""
    faults: dict[str, int] = {}
    timings: dict[str, float] = {}
    for wave in waves:
        for part, count in wave.faults.items():
            faults[part] = faults.get(part, 0) + count
        for name, seconds in wave.timings.items():
            timings[name] = timings.get(name, 0.0) + seconds
    scored = tuple(replace(episode, sampled_at=update) for wave in waves for episode in wave.scored)
    return EpisodeBatch(scored, faults, timings)
