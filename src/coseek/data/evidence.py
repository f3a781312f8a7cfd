"""Evidence: ids of all retrieved passages, each once, best first. Used for storage, metrics, rewards and generators.

A trajectory's stored `evidence` counts. Otherwise selected passages come first, in the order of selection, then the
others in the order of retrieval, and last those that only a visit showed.
"""

from collections.abc import Iterable, Sequence

from coseek.data.passage import Passage
from coseek.data.trajectory import Search, Trajectory, Visit


def evidence_of(trajectory: Trajectory) -> tuple[str, ...]:
    """The stored evidence of a run, or that of `ranked` for runs of older versions."""
    stored = trajectory.evidence
    return ranked(trajectory.searches, trajectory.selected_ids, trajectory.visits) if stored is None else stored


def ranked(searches: Sequence[Search], first: Iterable[str], visits: Sequence[Visit] = ()) -> tuple[str, ...]:
    """Ids of the retrieved passages: those of `first` in order, then the others in the order of `met_passages`."""
    met = met_passages(searches, visits)
    return tuple(dict.fromkeys((*(ident for ident in first if ident in met), *met)))


def met_passages(searches: Sequence[Search], visits: Sequence[Visit]) -> dict[str, Passage]:
    """By id what the searches found, in the order of retrieval, then what only visits showed."""
    met: dict[str, Passage] = {}
    for passage in (hit.passage for search in searches for hit in search.hits):
        met.setdefault(passage.id, passage)
    for passage in (passage for visit in visits for passage in visit.passages):
        met.setdefault(passage.id, passage)
    return met
