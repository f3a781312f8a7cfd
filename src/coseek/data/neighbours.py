"""Neighbours: the passages before and after one in its document, which their `meta` names."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from coseek.data.passage import Corpus, Passage

Way: TypeAlias = Literal["previous", "next"]


def neighbours(passage: Passage, corpus: Corpus, way: Way) -> Iterator[Passage]:
    """The passages before (`previous`) or after (`next`) a passage, the nearest first, each once. They end where a
    passage names none that the corpus has."""
    at, met = passage, {passage.id}
    while isinstance(ident := at.meta.get(way), str) and ident not in met and corpus.has(ident):
        met.add(ident)  # a corpus from elsewhere may lead round in a circle
        at = corpus.by_id(ident)
        yield at
