"""Negatives of a search turn, and label sets with drawn negatives."""

import random
from collections.abc import Iterator, Sequence

from coseek.agents.search_turns import SearchTurn, TurnId
from coseek.data.passage import Passage
from coseek.labels.label_set import Candidate, LabelSet


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
