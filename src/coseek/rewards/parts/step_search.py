"""Step search: rewards each turn for the gold passages that it found first, less the share of passages that it found
again (StepSearch, Wang et al. 2025, arXiv 2505.15107, which compares texts where this compares passage ids)."""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, PartValue, needs_gold_passages


class StepSearchSettings(PartSettings):
    """Settings of step search."""

    redundancy: float = Field(default=1.0, ge=0)
    """Weight of the share of a turn's passages that earlier searches had found. With 0 a turn earns the share of gold
    passages that it found first."""


SETTINGS = StepSearchSettings


def reward(trajectory: Trajectory, settings: StepSearchSettings) -> PartValue:
    """Σ over turns of |new gold| / |gold| - `redundancy` · |found again| / |found|; the search that opens a run earns
    nothing."""
    gold = set(needs_gold_passages(trajectory, "step_search"))
    turns, seen = [0.0] * len(trajectory.turn_spans), set[str]()
    by_turn: dict[int, set[str]] = {}
    for search in trajectory.searches:
        by_turn.setdefault(search.turn, set()).update(hit.passage.id for hit in search.hits)
    for turn, ids in sorted(by_turn.items()):
        if turn and ids:
            turns[turn - 1] = len(gold & ids - seen) / len(gold) - settings.redundancy * len(ids & seen) / len(ids)
        seen |= ids
    return PartValue(sum(turns), {}, tuple(turns))
