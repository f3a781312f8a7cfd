"""Rank tiers: a better rank of the first passage with a gold answer earns more (DeepRetrieval)."""

import math

from pydantic import field_validator

from coseek.data.answers import cover_match
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, needs_answers


class RankTiersSettings(PartSettings):
    """Ranks and their rewards."""

    tiers: str = "5=5, 20=4, 50=2, 100=1"
    """Ranks and rewards, best rank first: a passage at rank 5 or better earns 5. Set `limits.passages_per_search` to
    the last rank, since a passage that is not retrieved has no rank."""
    otherwise: float = -3.5
    """Reward of a run without such a passage within the last tier."""

    @field_validator("tiers")
    @classmethod
    def _check_rising(cls, value: str) -> str:
        ranks = [rank for rank, _ in pairs_of(value)]
        if not ranks or ranks[0] < 1 or ranks != sorted(set(ranks)):
            raise ValueError("ranks rise from 1, as in 5=4, 20=2, 100=0.5")
        return value


SETTINGS = RankTiersSettings


def pairs_of(tiers: str) -> list[tuple[int, float]]:
    """`5=4, 20=2` → [(5, 4.0), (20, 2.0)]. Raises `ValueError`."""
    pairs = [pair.partition("=") for pair in tiers.split(",")]
    return [(int(rank), float(pay)) for rank, _, pay in pairs]


def reward(trajectory: Trajectory, settings: RankTiersSettings) -> float:
    """The reward of the best rank, over the run's searches, of a passage that contains a gold answer."""
    golds = needs_answers(trajectory, "rank_tiers")
    ranks = [
        rank
        for search in trajectory.searches
        for rank, hit in enumerate(search.hits, start=1)
        if cover_match(f"{hit.passage.title} {hit.passage.text}", golds)
    ]
    best = min(ranks, default=math.inf)
    return next((pay for rank, pay in pairs_of(settings.tiers) if best <= rank), settings.otherwise)
