"""Rank tiers: the better the first passage with a gold answer is ranked, the more is paid (DeepRetrieval)."""

from pydantic import field_validator

from coseek.data.answers import cover_match
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, needs_answers


class RankTiersSettings(PartSettings):
    """Ranks and what they pay."""

    tiers: str = "5=5, 20=4, 50=2, 100=1"
    """Rank and pay, the best rank first: a passage at rank 5 or better pays 5. Set `limits.passages_per_search` to the
    last rank, since what was not retrieved has none."""
    otherwise: float = -3.5
    """For a run in which no search found such a passage within the last tier."""

    @field_validator("tiers")
    @classmethod
    def _rising(cls, value: str) -> str:
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
    """The pay of the tier of the first passage that contains a gold answer, the best of the run's searches."""
    golds = needs_answers(trajectory, "rank_tiers")
    ranks = [
        rank
        for search in trajectory.searches
        for rank, hit in enumerate(search.hits, start=1)
        if cover_match(f"{hit.passage.title} {hit.passage.text}", golds)
    ]
    best = min(ranks, default=None)
    if best is not None:
        for rank, pay in pairs_of(settings.tiers):
            if best <= rank:
                return pay
    return settings.otherwise
