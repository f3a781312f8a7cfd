"""First appearance: 1 for the turn whose searches first found a gold answer (TSPO's first-occurrence reward, Ma et al.
2026, arXiv 2601.22776)."""

from coseek.data.trajectory import Trajectory
from coseek.measure import rankings
from coseek.rewards.reward import PartSettings, PartValue, needs_answers

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> PartValue:
    """𝕀[a search found a passage with a gold answer as whole words], paid to the first such turn; the search that opens
    a run earns nothing."""
    golds, turns = needs_answers(trajectory, "first_appearance"), [0.0] * len(trajectory.turn_spans)
    for search in trajectory.searches:
        if rankings.answer_hit(golds, (f"{hit.passage.title} {hit.passage.text}" for hit in search.hits)):
            if search.turn:
                turns[search.turn - 1] = 1.0
            break
    return PartValue(sum(turns), {}, tuple(turns))
