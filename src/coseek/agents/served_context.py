"""Context: the passages that a finished run serves to whoever answers from them. Read from structured documents."""

from collections.abc import Iterator

from coseek.data.evidence import evidence_of
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory


def served_context(trajectory: Trajectory) -> list[Passage]:
    """The union of what the agent selected, in the order served (s3, appendix A.5).

    A search without a selection contributes all its passages, one with an empty selection none. Passages with the same
    title and text are one. A run whose searches hold no selection serves its evidence, best first: for an agent that
    does not rank what it finds, all passages as they were retrieved. Where it names `selected_ids` all the same (an
    agent by rule that ranked its evidence afterwards), those alone.
    """
    unique: dict[tuple[str, str], Passage] = {}
    for passage in _chosen(trajectory):
        unique.setdefault((passage.title, passage.text), passage)
    return list(unique.values())


def _chosen(trajectory: Trajectory) -> Iterator[Passage]:
    if all(search.selected is None for search in trajectory.searches):
        found = {hit.passage.id: hit.passage for search in trajectory.searches for hit in search.hits}
        best = trajectory.selected_ids or evidence_of(trajectory)
        yield from (found[ident] for ident in best if ident in found)
        return
    for search in trajectory.searches:
        for hit in search.hits:
            if search.selected is None or hit.passage.id in search.selected:
                yield hit.passage
