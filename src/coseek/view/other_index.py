"""Other index: at which ranks another retriever has the passages that a search found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coseek.data.trajectory import Search
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever

DEPTH = 100
"""Passages that are asked for; what is not among them has no rank."""


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
        """For each search the rank of each of its hits here, from 1; `None` beyond `DEPTH`. `queries` are those of the
        searches. Raises `RetrieverError`."""
        found = self.retriever.search(queries, DEPTH) if queries else []
        places = [{hit.passage.id: rank for rank, hit in enumerate(hits, start=1)} for hits in found]
        return [[at.get(hit.passage.id) for hit in one.hits] for one, at in zip(searches, places, strict=True)]
