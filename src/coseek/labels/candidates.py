"""Candidates: the current retriever's results for search turns, through its own view."""

from collections.abc import Sequence
from typing import TypeAlias

from coseek.agents.search_turns import SearchTurn
from coseek.core.errors import RetrieverError
from coseek.data.passage import Hit
from coseek.graders.call_counts import FAULT, CallCounts
from coseek.labels.label_set import Candidate
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever

RETRIEVER = "retriever"
"""Name of the retriever's own score."""

Candidates: TypeAlias = tuple[Candidate, ...]


def find_candidates(
    retriever: Retriever, turns: Sequence[SearchTurn], k: int, tally: CallCounts
) -> list[Candidates | None]:
    """The `k` best passages of every turn, best first; `None` where the search failed, which affects no other query.
    Equal queries are searched once."""
    unique = list(dict.fromkeys(turn.query for turn in turns))
    found = dict(zip(unique, _search(retriever, unique, k), strict=True))
    tally.add(FAULT + RETRIEVER, sum(found[turn.query] is None for turn in turns))
    return [found[turn.query] for turn in turns]


def _search(retriever: Retriever, queries: list[Query], k: int) -> list[Candidates | None]:
    if not queries:
        return []
    try:
        return [_candidates(hits) for hits in retriever.search(queries, k)]
    except RetrieverError:
        if len(queries) == 1:
            return [None]
    middle = len(queries) // 2
    return _search(retriever, queries[:middle], k) + _search(retriever, queries[middle:], k)


def _candidates(hits: Sequence[Hit]) -> Candidates:
    return tuple(Candidate(hit.passage, rank, {RETRIEVER: hit.score}) for rank, hit in enumerate(hits, start=1))
