"""Other index: at which ranks another retriever has the passages that a search found.

An imported log has ids of its own and may have cut a passage or put its title into its text, so passages are compared
by id and by words: an id that stands for other words is another passage, and the same words are the same passage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coseek.data.passage import Passage
from coseek.data.trajectory import Search
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever

DEPTH = 100
"""Passages that are asked for; what is not among them has no rank."""
_LEAST_WORDS = 5
"""Fewer words may be a part of several passages."""


@dataclass(frozen=True)
class OtherIndex:
    """A retriever by the name under which the page shows it."""

    name: str
    retriever: Retriever

    @classmethod
    def open(cls, source: str) -> "OtherIndex":
        """Open an index folder, a URL or a YAML file. Raises `UserError` for anything else."""
        return cls(Path(source).name or source, open_retriever(source))

    def ranks(self, searches: Sequence[Search], queries: Sequence[QueryLike]) -> list[list[int | None]]:
        """For each search the rank of each of its hits here, from 1; 0 beyond `DEPTH`; `None` for a hit without text
        whose id is not here either, which may be a passage under another id. `queries` are those of the searches.
        Raises `RetrieverError`."""
        found = self.retriever.search(queries, DEPTH) if queries else []
        ranked = ([_PassageWords.of(hit.passage) for hit in hits] for hits in found)
        pairs = zip(searches, ranked, strict=True)
        return [[_rank(_PassageWords.of(hit.passage), here) for hit in one.hits] for one, here in pairs]


@dataclass(frozen=True, slots=True)
class _PassageWords:
    """A passage as it is compared."""

    ident: str
    text: str
    """The words of the text, a blank before each."""
    whole: str
    """The same with those of the title."""

    @classmethod
    def of(cls, passage: Passage) -> "_PassageWords":
        title, text = ("".join(f" {word}" for word in words(part)) for part in (passage.title, passage.text))
        return cls(passage.id, text, title + text)

    def is_like(self, other: "_PassageWords") -> bool:
        """Whether half of the words of the shorter text are in the longer, or one has no text."""
        ours, theirs = set(self.whole.split()), set(other.whole.split())
        return 2 * len(ours & theirs) >= min(len(ours), len(theirs))

    def says(self, other: "_PassageWords") -> bool:
        """Whether one text is the other's, or holds it: a log may cut a text, even inside a word."""
        if not self.whole or not other.whole:
            return False
        if self.whole == other.whole:
            return True
        held = ((self.text, other.whole), (other.text, self.whole), (self.whole, other.whole))
        return any(part.count(" ") >= _LEAST_WORDS and part in whole for part, whole in held)


def _rank(hit: _PassageWords, here: Sequence[_PassageWords]) -> int | None:
    for same in (lambda one: one.ident == hit.ident and one.is_like(hit), hit.says):
        for rank, one in enumerate(here, start=1):
            if same(one):
                return rank
    return 0 if hit.whole else None
