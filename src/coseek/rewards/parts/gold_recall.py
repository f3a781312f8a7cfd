"""Gold recall: the share of the gold passages that the run retrieved (query training in the style of DeepRetrieval)."""

from statistics import fmean
from typing import Literal

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.measure import rankings
from coseek.measure.retrieval import run_recall, searched_ids
from coseek.rewards.reward import PartSettings, needs_gold_passages


class GoldRecallSettings(PartSettings):
    """Which passages count."""

    max_passages: int | None = Field(default=None, ge=1)
    """Number of distinct passages that count, so that more searches earn nothing; `None`: all."""
    all_or_nothing: bool = False
    """1 if every gold passage was retrieved, else 0, instead of the share."""
    over: Literal["run", "search"] = "run"
    """`run`: all retrieved passages together; `search`: mean over the searches without a fault, so that a search
    without a gold passage lowers the reward."""


SETTINGS = GoldRecallSettings


def reward(trajectory: Trajectory, settings: GoldRecallSettings) -> float:
    """|gold ∩ retrieved| / |gold|, in [0, 1]. A run without a search has 0."""
    gold = needs_gold_passages(trajectory, "gold_recall")
    if settings.over == "run":
        shares = [run_recall(trajectory, settings.max_passages)]
    else:
        shares = [rankings.recall(gold, ids, settings.max_passages) for ids in searched_ids(trajectory)]
    values = [float(share == 1) if settings.all_or_nothing else share or 0.0 for share in shares]
    return fmean(values) if values else 0.0
