"""Passage groups: what a model is asked about, one passage or two that share a name.

The name is the title of the second passage, or a rare name that both hold. Unlike a hop of the graph a group states
nothing: what the passages say of the name is left to whoever reads them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from coseek.data.passage import Passage
from coseek.data.question import plain_name
from coseek.lab.synthesis.names import NameFinder, key_of, sentences
from coseek.retrieval.lexical.analyzer import words

_LEAST_WORDS = 5
"""Words of a passage that is asked about."""
_RARE = 5
"""Passages that may hold a name that joins them, or have it as their title."""


@dataclass(frozen=True, slots=True)
class PassageGroup:
    """What a request shows: one passage, or two that a name links."""

    rows: tuple[int, ...]
    link: str = ""
    """The name that leads from the first passage to the second, as the first one writes it."""
    rank: int = 0
    """Pairs whose second passage is titled by the link come before the others."""


def single_passages(passages: Iterable[Passage]) -> list[PassageGroup]:
    """Every passage that is long enough to be asked about."""
    return [PassageGroup((row,)) for row, one in enumerate(passages) if len(words(one.text)) >= _LEAST_WORDS]


def linked_passages(passages: Sequence[Passage]) -> Iterator[PassageGroup]:
    """Every linked pair of titled passages, once in each direction at most."""
    titles = [key_of(plain_name(passage.title)) for passage in passages]
    titled: defaultdict[str, list[int]] = defaultdict(list)
    for row, title in enumerate(titles):
        titled[title].append(row)
    finder = NameFinder(set(titled) - {""})
    names = [_names(passage, finder) for passage in passages]
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for row, written in enumerate(names):
        for key in written:
            holders[key].append(row)
    for row, written in enumerate(names):
        joined: set[int] = {row}
        for key, name in written.items():
            others = titled.get(key) or holders[key]
            if key != titles[row] and len(others) <= _RARE:
                for other in others:
                    if other not in joined:
                        joined.add(other)
                        yield PassageGroup((row, other), name, int(key not in titled))


def _names(passage: Passage, finder: NameFinder) -> dict[str, str]:
    """Key → name, of every name in a passage's text."""
    names: dict[str, str] = {}
    for tokens in sentences(passage.text):
        for name in finder.find(passage.text, tokens):
            if name.kind == "name" and name.key:
                names.setdefault(name.key, name.text)
    return names
