"""Step search: pays each turn the gold passages that it found first, less the share that it found again (StepSearch,
Wang et al. 2025, arXiv 2505.15107, which compares texts where this compares passage ids)."""

from pydantic import Field

from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import PartSettings, PartValue, needs_gold_passages


class StepSearchSettings(PartSettings):
    """Settings of step search."""

    redundancy: float = Field(default=1.0, ge=0)
    """Weight of the share of a turn's passages that earlier searches had found. With 0 a turn earns what it takes off
    the distance to the goal, the share of gold passages not yet read."""


SETTINGS = StepSearchSettings


def reward(trajectory: Trajectory, settings: StepSearchSettings) -> PartValue:
    """Σ over turns of |new gold| / |gold| - `redundancy` · |found again| / |found|; a search that opens the run earns
    nothing."""
    gold = set(needs_gold_passages(trajectory, "step_search"))
    turns, met = [0.0] * len(trajectory.turn_spans), set[str]()
    by_turn: dict[int, set[str]] = {}
    for search in trajectory.searches:
        by_turn.setdefault(search.turn or 0, set()).update(hit.passage.id for hit in search.hits)
    for turn, ids in sorted(by_turn.items()):
        if turn and ids:
            turns[turn - 1] = len(gold & ids - met) / len(gold) - settings.redundancy * len(ids & met) / len(ids)
        met |= ids
    return PartValue(sum(turns), {}, tuple(turns))
