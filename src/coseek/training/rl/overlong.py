"""Overlong: a soft penalty on long runs (DAPO, Yu et al. 2025, eq. 13)."""

from collections.abc import Mapping
from dataclasses import replace

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import Reward
from coseek.training.rl.episodes import EpisodeBatch
from coseek.training.rl.settings import OverlongSettings

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
