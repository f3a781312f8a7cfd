"""Selection: which passages become the negatives of a search turn."""

import random
from collections.abc import Sequence

from coseek.agents.search_turns import TurnId
from coseek.data.passage import Passage
from coseek.labels.label_set import Candidate


def pick_negatives(turn: TurnId, pool: Sequence[str], count: int, seed: int, copy: int = 0) -> tuple[str, ...]:
    """`count` ids of the pool, or all when there are fewer, in the pool's order.

    The draw depends on the seed, the turn and the pool alone, so the labels of a turn are the same whichever other
    turns are labelled, and in which order.
    """
    if len(pool) <= count:
        return tuple(pool)
    drawn = random.Random(f"{seed} {turn.question_id} {turn.seed} {turn.search} {copy}").sample(range(len(pool)), count)
    return tuple(pool[place] for place in sorted(drawn))


def not_equal_to(candidates: Sequence[Candidate], others: Sequence[Passage]) -> list[Candidate]:
    """The candidates that are none of these passages, under any id: a copy of a positive is no negative."""
    texts = {(passage.title, passage.text) for passage in others}
    idents = {passage.id for passage in others}
    return [
        candidate
        for candidate in candidates
        if candidate.passage.id not in idents and (candidate.passage.title, candidate.passage.text) not in texts
    ]
