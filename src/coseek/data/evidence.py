"""Evidence: ids of all retrieved passages, each once, best first. Used for storage, metrics, rewards and generators.

A trajectory's stored `evidence` counts. Otherwise selected passages come first, in the order of selection, then the
others in the order of retrieval.
"""

from collections.abc import Iterable, Sequence

from coseek.data.trajectory import Search, Trajectory


def evidence_of(trajectory: Trajectory) -> tuple[str, ...]:
    """The stored evidence of a run, or that of `ranked` for runs of older versions."""
    stored = trajectory.evidence
    return ranked(trajectory.searches, trajectory.selected_ids) if stored is None else stored


def ranked(searches: Sequence[Search], first: Iterable[str]) -> tuple[str, ...]:
    """Ids of the retrieved passages: those of `first` in order, then the others in the order of retrieval."""
    met = dict.fromkeys(hit.passage.id for search in searches for hit in search.hits)
    return tuple(dict.fromkeys((*(ident for ident in first if ident in met), *met)))
