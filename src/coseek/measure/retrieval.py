"""Retrieval: what was found, judged on the structured hits of a run and never on rendered text.

Passages are counted once each, in the order in which they were served. A search that failed found nothing to judge,
so it is left out of per-search means (and counted as a fault elsewhere). Where a question names no gold passages
there is nothing to recall, and the answer is `None`: no number, rather than a 0.
"""

import math
from collections.abc import Iterable, Sequence

from coseek.data.passage import Hit, Passage
from coseek.data.trajectory import Trajectory
from coseek.measure.answers import cover_match


def served(trajectory: Trajectory) -> list[Passage]:
    """Every passage that was retrieved in the run, once, in the order of first sight."""
    first: dict[str, Passage] = {}
    for search in trajectory.searches:
        for hit in search.hits:
            first.setdefault(hit.passage.id, hit.passage)
    return list(first.values())


def ranking(trajectory: Trajectory) -> list[str]:
    """The ids of the run's evidence, best first: what the agent selected, then what else it was served, as served."""
    rest = (passage.id for passage in served(trajectory))
    return list(dict.fromkeys((*trajectory.selected_ids, *rest)))


def recall(gold_ids: Sequence[str], found: Iterable[str]) -> float | None:
    """Share of the gold passages among what was found, in [0, 1]; `None` without gold passages."""
    gold = set(gold_ids)
    return len(gold.intersection(found)) / len(gold) if gold else None


def all_gold(gold_ids: Sequence[str], found: Iterable[str]) -> bool | None:
    """Whether every gold passage was found; `None` without gold passages."""
    return set(gold_ids).issubset(found) if gold_ids else None


def run_recall(trajectory: Trajectory, max_passages: int | None = None) -> float | None:
    """Recall over everything the run retrieved. It grows with searches × k (trap 40), hence the budget:

    `max_passages` counts only the first so many distinct passages, in the order served.
    """
    ids = [passage.id for passage in served(trajectory)]
    return recall(trajectory.question.gold_ids, ids[:max_passages])


def search_recalls(trajectory: Trajectory) -> list[float]:
    """Recall of each search by itself, over all gold passages; empty without gold passages or without searches."""
    hits = (search.hits for search in trajectory.searches if search.fault is None)
    recalls = (recall(trajectory.question.gold_ids, _ids(found)) for found in hits)
    return [value for value in recalls if value is not None]


def all_gold_at(trajectory: Trajectory, k: int) -> bool | None:
    """All-gold@k: every gold passage is among the first `k` of the run's `ranking`."""
    return all_gold(trajectory.question.gold_ids, ranking(trajectory)[:k])


def answer_hit(trajectory: Trajectory) -> bool:
    """A gold answer stands, as whole words, in a passage that was retrieved.

    Passages only: a policy cannot earn this by writing the gold answer itself (trap 25). Title and body are looked at
    together, passage by passage, so no answer is put together across two of them.
    """
    golds = trajectory.question.answers
    return any(cover_match(f"{passage.title} {passage.text}", golds) for passage in served(trajectory))


def reciprocal_rank(gold_ids: Sequence[str], found: Sequence[str]) -> float | None:
    """1 / rank of the first gold passage (rank from 1), 0 when none was found; `None` without gold passages."""
    if not gold_ids:
        return None
    return next((1 / rank for rank, ident in enumerate(found, start=1) if ident in gold_ids), 0.0)


def ndcg(gold_ids: Sequence[str], found: Sequence[str], k: int) -> float | None:
    """nDCG@k with gain 1 for a gold passage and discount 1/log2(rank + 1); `None` without gold passages."""
    gold = set(gold_ids)
    if not gold:
        return None
    first = list(dict.fromkeys(found))[:k]
    gained = sum(1 / math.log2(rank + 1) for rank, ident in enumerate(first, start=1) if ident in gold)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(gold), k) + 1))
    return gained / best if best else 0.0


def _ids(hits: Iterable[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]
