"""nDCG of the gold passages in the retrieved ranking (query training in the style of DeepRetrieval)."""

from statistics import fmean
from typing import Literal

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.measure import rankings
from coseek.measure.retrieval import evidence, searched_ids
from coseek.measure.searched import relevance
from coseek.rewards.reward import PartSettings, needs_gold_passages


class NdcgSettings(PartSettings):
    """Ranking and depth."""

    k: int | None = Field(default=10, ge=1)
    """Ranks that count; `None`: all."""
    over: Literal["run", "search"] = "run"
    """`run`: the evidence of the whole run, selected passages first; `search`: mean over the searches without a
    fault."""


SETTINGS = NdcgSettings


def reward(trajectory: Trajectory, settings: NdcgSettings) -> float:
    """nDCG@k in [0, 1], with the question's graded relevance where it has some. A run without a search has 0."""
    needs_gold_passages(trajectory, "ndcg")
    gold = relevance(trajectory.question)
    if settings.over == "run":
        return rankings.ndcg(gold, evidence(trajectory), settings.k) or 0.0
    values = [rankings.ndcg(gold, ids, settings.k) or 0.0 for ids in searched_ids(trajectory)]
    return fmean(values) if values else 0.0
