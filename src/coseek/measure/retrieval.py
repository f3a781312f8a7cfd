"""Retrieval: metrics of a run's retrieved passages, computed from its hits and not from rendered text.

Passages count once, in the order of retrieval; metrics at k use the run's evidence (`data/trajectory.py`), best first.
A failed search is left out of means per search. Recall is `None` for questions without gold passages. A passage that is
the question itself (`Question.own_passage`) is no hit.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory, evidence_of, met_passages
from coseek.measure import rankings

PassageBudget: TypeAlias = Callable[[Sequence[Passage]], tuple[Sequence[Passage], int]]
"""The leading passages that a number of tokens admits, and the tokens that they take."""


def served(trajectory: Trajectory) -> list[Passage]:
    """All retrieved passages of the run without duplicates, in the order of retrieval; those of visits last."""
    passages = met_passages(trajectory.searches, trajectory.visits).values()
    return [passage for passage in passages if passage.id != trajectory.question.own_passage]


def evidence(trajectory: Trajectory) -> list[str]:
    """Ids of the run's evidence, best first."""
    return [ident for ident in evidence_of(trajectory) if ident != trajectory.question.own_passage]


def run_recall(trajectory: Trajectory, max_passages: int | None = None) -> float | None:
    """Recall over all retrieved passages, or over the first `max_passages` distinct ones. Grows with searches × k."""
    return rankings.recall(trajectory.question.gold_ids, (passage.id for passage in served(trajectory)), max_passages)


def search_recalls(trajectory: Trajectory) -> list[float]:
    """Recall of each search over all gold passages; empty without gold passages or searches."""
    recalls = (rankings.recall(trajectory.question.gold_ids, ids) for ids in searched_ids(trajectory))
    return [value for value in recalls if value is not None]


def searched_ids(trajectory: Trajectory) -> list[list[str]]:
    """Passage ids of each search without a fault, best first."""
    own_passage = trajectory.question.own_passage
    return [
        [hit.passage.id for hit in search.hits if hit.passage.id != own_passage]
        for search in trajectory.searches
        if search.fault is None
    ]


def recall_at(trajectory: Trajectory, k: int) -> float | None:
    """Recall@k: the share of the gold passages among the first `k` of the run's evidence."""
    return rankings.recall(trajectory.question.gold_ids, evidence(trajectory), k)


def budgeted_recall(trajectory: Trajectory, budget: PassageBudget) -> float | None:
    """Share of the gold passages among the first of the run's evidence that `budget` admits, in [0, 1].

    Unlike recall it does not grow with searches × k, so that agents are compared at an equal amount of text.
    """
    passages = {passage.id: passage for passage in served(trajectory)}
    admitted_passages, _ = budget([passages[ident] for ident in evidence(trajectory) if ident in passages])
    return rankings.recall(trajectory.question.gold_ids, (passage.id for passage in admitted_passages))


def all_gold_at(trajectory: Trajectory, k: int) -> bool | None:
    """All-gold@k: every gold passage is among the first `k` of the run's evidence."""
    return rankings.all_gold(trajectory.question.gold_ids, evidence(trajectory), k)


def answer_hit(trajectory: Trajectory) -> bool:
    """Whether a retrieved passage (title and text) contains a gold answer as whole words.

    The agent's own text does not count, so that a policy cannot earn this by writing the answer.
    """
    texts = (f"{passage.title} {passage.text}" for passage in served(trajectory))
    return bool(rankings.answer_hit(trajectory.question.answers, texts))
