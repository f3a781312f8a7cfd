"""Gold recall: the share of the gold passages that the run retrieved (query training in the style of DeepRetrieval)."""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.measure.retrieval import run_recall
from coseek.rewards.reward import PartOptions, needs_gold_passages


class Options(PartOptions):
    """How much reading is paid for."""

    max_passages: int | None = Field(default=None, ge=1)
    """Only the first so many distinct passages count, so searching on and on earns nothing (trap 40); `None`: all."""
    all_or_nothing: bool = False
    """1 when every gold passage was found and 0 otherwise, instead of the share."""


def reward(trajectory: Trajectory, options: Options) -> float:
    """|gold ∩ retrieved| / |gold|, in [0, 1]."""
    needs_gold_passages(trajectory, "gold_recall")
    share = run_recall(trajectory, options.max_passages)
    assert share is not None
    return float(share == 1) if options.all_or_nothing else share
