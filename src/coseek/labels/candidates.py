"""Candidates: the current retriever's results for search turns, through its own view."""

import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from coseek.agents.search_turns import SearchTurn, TurnId
from coseek.core.errors import RetrieverError
from coseek.data.passage import Hit, Passage
from coseek.graders.structured_output import FAULT, CallCounts
from coseek.labels.label_set import Candidate, LabelSet
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


# Negatives of a search turn, and label sets with drawn negatives.


def pick_negatives(turn: TurnId, pool: Sequence[str], count: int, seed: int, copy: int = 0) -> tuple[str, ...]:
    """`count` ids of the pool, or all when there are fewer, in the pool's order.

    The draw depends only on the seed, the turn, the copy and the pool. The labels of a turn therefore do not depend on
    the other turns or their order.
    """
    if len(pool) <= count:
        return tuple(pool)
    drawn = random.Random(f"{seed} {turn.question_id} {turn.seed} {turn.search} {copy}").sample(range(len(pool)), count)
    return tuple(pool[place] for place in sorted(drawn))


def not_equal_to(candidates: Sequence[Candidate], others: Sequence[Passage]) -> list[Candidate]:
    """The candidates that differ from these passages in id and text: a copy of a positive is no negative."""
    texts = {(passage.title, passage.text) for passage in others}
    idents = {passage.id for passage in others}
    return [
        candidate
        for candidate in candidates
        if candidate.passage.id not in idents and (candidate.passage.title, candidate.passage.text) not in texts
    ]


def label_sets(
    turn: SearchTurn,
    candidates: Sequence[Candidate],
    positives: Sequence[Passage],
    pool: Sequence[str],
    count: int,
    seed: int,
) -> Iterator[LabelSet]:
    """One label set per positive, each with `count` negatives drawn from the pool."""
    for copy, positive in enumerate(positives):
        yield LabelSet(
            turn=turn.id,
            question=turn.question,
            query=turn.query,
            candidates=tuple(candidates),
            positive=positive.id,
            negatives=pick_negatives(turn.id, pool, count, seed, copy),
            copy=copy,
        )
