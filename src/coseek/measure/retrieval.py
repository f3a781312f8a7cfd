"""Retrieval: what a run found, judged on its structured hits and never on rendered text.

Passages are counted once each, in the order in which they were served; what looks at the first k of a run looks at its
evidence (`data/evidence.py`), in which the best come first. A search that failed found nothing to judge, so it is left
out of per-search means (and counted as a fault elsewhere). Where a question names no gold passages there is nothing to
recall, and the answer is `None`: no number, rather than a 0.
"""

from coseek.data.evidence import evidence_of
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.measure import rankings


def served(trajectory: Trajectory) -> list[Passage]:
    """Every passage that was retrieved in the run, once, in the order of first sight."""
    first: dict[str, Passage] = {}
    for search in trajectory.searches:
        for hit in search.hits:
            first.setdefault(hit.passage.id, hit.passage)
    return list(first.values())


def run_recall(trajectory: Trajectory, max_passages: int | None = None) -> float | None:
    """Recall over everything the run retrieved. It grows with searches × k, hence the budget:

    `max_passages` counts only the first so many distinct passages, in the order served.
    """
    return rankings.recall(trajectory.question.gold_ids, (passage.id for passage in served(trajectory)), max_passages)


def search_recalls(trajectory: Trajectory) -> list[float]:
    """Recall of each search by itself, over all gold passages; empty without gold passages or without searches."""
    hits = (search.hits for search in trajectory.searches if search.fault is None)
    recalls = (rankings.recall(trajectory.question.gold_ids, (hit.passage.id for hit in found)) for found in hits)
    return [value for value in recalls if value is not None]


def recall_at(trajectory: Trajectory, k: int) -> float | None:
    """Recall@k: the share of the gold passages among the first `k` of the run's evidence."""
    return rankings.recall(trajectory.question.gold_ids, evidence_of(trajectory), k)


def all_gold_at(trajectory: Trajectory, k: int) -> bool | None:
    """All-gold@k: every gold passage is among the first `k` of the run's evidence."""
    return rankings.all_gold(trajectory.question.gold_ids, evidence_of(trajectory), k)


def answer_hit(trajectory: Trajectory) -> bool:
    """A gold answer stands, as whole words, in a passage that was retrieved.

    Passages only: a policy cannot earn this by writing the gold answer itself. Title and body are looked at
    together, passage by passage, so no answer is put together across two of them.
    """
    texts = (f"{passage.title} {passage.text}" for passage in served(trajectory))
    return bool(rankings.answer_hit(trajectory.question.answers, texts))
