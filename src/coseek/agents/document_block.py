"""Document block: the documents shown for one turn's searches, numbered from 1 as the agent sees them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from coseek.data.passage import Hit, Passage
from coseek.data.trajectory import Search


def shown_documents(searches: Sequence[Search]) -> list[tuple[int, Hit]]:
    """List the documents of a block in the order shown, each with the index of its search.

    Results are in the order of the queries. A passage found by several queries is shown once, with the first.
    """
    first: dict[str, tuple[int, Hit]] = {}
    for place, search in enumerate(searches):
        for hit in search.hits:
            first.setdefault(hit.passage.id, (place, hit))
    return list(first.values())


def numbered_documents(searches: Sequence[Search]) -> list[Passage]:
    """List the documents of all blocks in the order shown: number n of a run is at n − 1. A passage that two blocks
    show has two numbers."""
    blocks = (list(block) for _, block in groupby(searches, lambda search: search.turn))
    return [hit.passage for block in blocks for _, hit in shown_documents(block)]


def latest_block(searches: Sequence[Search]) -> Sequence[Search]:
    """The searches of the latest turn that searched."""
    count = sum(search.turn == searches[-1].turn for search in searches) if searches else 0
    return searches[len(searches) - count :]


def apply_selection(searches: Sequence[Search], numbers: Sequence[int]) -> list[Search]:
    """Return one block's searches with these documents selected, by number from 1; other numbers are ignored."""
    chosen = [
        (place, hit.passage.id) for number, (place, hit) in enumerate(shown_documents(searches), 1) if number in numbers
    ]
    return [
        replace(search, selected=tuple(ident for owner, ident in chosen if owner == place))
        for place, search in enumerate(searches)
    ]
