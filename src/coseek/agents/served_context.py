"""Served context: the passages that a finished run hands to a generator."""

from collections.abc import Iterator

from coseek.data.evidence import evidence_of, met_passages
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory


def served_context(trajectory: Trajectory) -> list[Passage]:
    """Return the union of the passages that the agent selected, in the order served (s3, appendix A.5).

    A search without a selection contributes all its passages, one with an empty selection none. Passages with equal
    title and text are one. A trajectory without any selection serves its `selected_ids` if it has some (rule-based
    agents rank afterwards), else its evidence, best first.
    """
    unique: dict[tuple[str, str], Passage] = {}
    for passage in _chosen(trajectory):
        unique.setdefault((passage.title, passage.text), passage)
    return list(unique.values())


def _chosen(trajectory: Trajectory) -> Iterator[Passage]:
    if all(search.selected is None for search in trajectory.searches):
        found = met_passages((), trajectory.visits)
        found |= {hit.passage.id: hit.passage for search in trajectory.searches for hit in search.hits}
        best = trajectory.selected_ids or evidence_of(trajectory)
        yield from (found[ident] for ident in best if ident in found)
        return
    for search in trajectory.searches:
        for hit in search.hits:
            if search.selected is None or hit.passage.id in search.selected:
                yield hit.passage
