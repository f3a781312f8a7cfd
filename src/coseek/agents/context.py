"""Context: the passages that a finished run serves to whoever answers from them. Read from structured documents."""

from collections.abc import Iterator

from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory


def served_context(trajectory: Trajectory) -> list[Passage]:
    """The union of what the agent selected, in the order served (s3, appendix A.5).

    A search without a selection contributes all its passages, one with an empty selection none. Passages with the same
    title and text are one. A run whose searches hold no selection, but which names `selected_ids` (an agent by rule
    that ranked its evidence afterwards), serves those.
    """
    unique: dict[tuple[str, str], Passage] = {}
    for passage in _chosen(trajectory):
        unique.setdefault((passage.title, passage.text), passage)
    return list(unique.values())


def _chosen(trajectory: Trajectory) -> Iterator[Passage]:
    if trajectory.selected_ids and all(search.selected is None for search in trajectory.searches):
        found = {hit.passage.id: hit.passage for search in trajectory.searches for hit in search.hits}
        yield from (found[ident] for ident in trajectory.selected_ids if ident in found)
        return
    for search in trajectory.searches:
        for hit in search.hits:
            if search.selected is None or hit.passage.id in search.selected:
                yield hit.passage
