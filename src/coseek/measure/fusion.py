"""Fusion: the ranking that a run's searches agree on, whatever the agent itself made of them."""

from coseek.data.trajectory import Trajectory
from coseek.retrieval.fusion import reciprocal_rank_fusion


def fused(trajectory: Trajectory) -> list[str]:
    """Ids of all passages that the run retrieved, best first, by reciprocal rank fusion of its searches."""
    return list(reciprocal_rank_fusion([hit.passage.id for hit in search.hits] for search in trajectory.searches))
