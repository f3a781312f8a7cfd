"""Evidence: what a run found, best first. One rule for what is stored, scored, paid for and given to generators.

A trajectory that stores its `evidence` says it itself: an agent that ranks what it found (the rule-based one) has its
own order. Otherwise the passages that the agent selected come first, in the order of its selections, then the other
passages in the order in which they were first retrieved: search by search, and within a search as it ranked them. Every
passage that was retrieved stands in it, by id, once.
"""

from collections.abc import Iterable, Sequence

from coseek.data.trajectory import Search, Trajectory


def evidence_of(trajectory: Trajectory) -> tuple[str, ...]:
    """Ids of all passages that the run retrieved, best first: as stored, else by the rule (runs of older versions)."""
    if trajectory.evidence is not None:
        return trajectory.evidence
    return ranked(trajectory.searches, trajectory.selected_ids)


def ranked(searches: Sequence[Search], first: Iterable[str]) -> tuple[str, ...]:
    """Ids of all passages that were retrieved: those of `first`, in their order, then the others as they were met.

    What was never retrieved is left out, and what stands twice in `first` counts where it stands first.
    """
    met = dict.fromkeys(hit.passage.id for search in searches for hit in search.hits)
    return tuple(dict.fromkeys((*(ident for ident in first if ident in met), *met)))
