"""Links: pairs of passages that share a name, so that a question can lead from one to the other.

The name is the title of the second passage, or a rare name that both hold. Unlike a hop of the graph a link states
nothing: what the passages say of the name is left to whoever reads them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coseek.data.gold_path import plain_name
from coseek.data.passage import Passage
from coseek.synthesis.names import NameFinder, key_of, sentences

_RARE = 5
"""Passages that may hold a name that joins them, or have it as their title."""


@dataclass(frozen=True, slots=True)
class Link:
    """A name that leads from one passage to another."""

    first: int
    second: int
    name: str
    """As the first passage writes it."""
    titled: bool
    """It is the title of the second passage."""


def links(passages: Sequence[Passage]) -> Iterator[Link]:
    """The links of titled passages, by rows; a pair of passages has one in each direction at most."""
    titles = [key_of(plain_name(passage.title)) for passage in passages]
    titled: defaultdict[str, list[int]] = defaultdict(list)
    for row, title in enumerate(titles):
        titled[title].append(row)
    names = [_names(passage, finder) for finder in [NameFinder(set(titled) - {""})] for passage in passages]
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for row, found in enumerate(names):
        for key in found:
            holders[key].append(row)
    for row, found in enumerate(names):
        joined: set[int] = {row}
        for key, written in found.items():
            others = titled.get(key) or holders[key]
            if key != titles[row] and len(others) <= _RARE:
                for other in others:
                    if other not in joined:
                        joined.add(other)
                        yield Link(row, other, written, key in titled)


def _names(passage: Passage, finder: NameFinder) -> dict[str, str]:
    """Key → name, of every name in a passage's text."""
    found: dict[str, str] = {}
    for tokens in sentences(passage.text):
        for name in finder.find(passage.text, tokens):
            if name.kind == "name" and name.key:
                found.setdefault(name.key, name.text)
    return found
