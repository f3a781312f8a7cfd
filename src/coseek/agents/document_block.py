"""Block: the documents that answer one turn, numbered as the agent sees them. Structured; no rendered text is read."""

from collections.abc import Sequence
from dataclasses import replace

from coseek.data.passage import Hit
from coseek.data.trajectory import Search


def shown_documents(searches: Sequence[Search]) -> list[tuple[int, Hit]]:
    """The documents of a block in the order shown, each once, with the place of the search that they belong to.

    Results stand in the order of the queries. A passage that several queries found is shown with the first.
    """
    first: dict[str, tuple[int, Hit]] = {}
    for place, search in enumerate(searches):
        for hit in search.hits:
            first.setdefault(hit.passage.id, (place, hit))
    return list(first.values())


def latest_block(searches: Sequence[Search]) -> Sequence[Search]:
    """The searches of the newest block."""
    count = sum(search.turn == searches[-1].turn for search in searches) if searches else 0
    return searches[len(searches) - count :]


def apply_selection(searches: Sequence[Search], numbers: Sequence[int]) -> list[Search]:
    """The searches of one block with the documents of these numbers (from 1) selected; other numbers name nothing."""
    chosen = [
        (place, hit.passage.id) for number, (place, hit) in enumerate(shown_documents(searches), 1) if number in numbers
    ]
    return [
        replace(search, selected=tuple(ident for owner, ident in chosen if owner == place))
        for place, search in enumerate(searches)
    ]
