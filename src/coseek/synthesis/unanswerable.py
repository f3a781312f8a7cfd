"""Unanswerable twins: the same questions over a corpus that lacks some of the passages that they need.

A data set of its own, since all questions of a data set share its corpus. A question whose path lost a passage has
`meta.unanswerable`, the ids in `meta.withheld`, and the answer `not in these documents`, as `extract` declines; all
others are as they were.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coseek.agents.sources import NOT_FOUND
from coseek.core.files import Json
from coseek.data.question import Question


def withhold(questions: Sequence[Question], share: float, rng: random.Random) -> set[str]:
    """Ids of passages without which about `share` of the questions lose one that they need."""
    withheld: set[str] = set()
    lost = 0
    for question in rng.sample(questions, len(questions)):
        if lost >= share * len(questions):
            break
        if withheld.isdisjoint(question.gold_ids):
            withheld.add(rng.choice(question.gold_ids))
            lost = sum(not withheld.isdisjoint(one.gold_ids) for one in questions)
    return withheld


def twins(questions: Mapping[str, Sequence[Question]], withheld: set[str]) -> dict[str, list[Question]]:
    """The questions of every split over the corpus without the withheld passages."""
    return {split: [_twin(question, withheld) for question in asked] for split, asked in questions.items()}


def _twin(question: Question, withheld: set[str]) -> Question:
    lost: list[Json] = [ident for ident in question.gold_ids if ident in withheld]
    negatives = question.meta.get("negatives")
    kept: list[Json] = [one for one in negatives if one not in withheld] if isinstance(negatives, list) else []
    meta = {**question.meta, "negatives": kept}
    if not lost:
        return replace(question, meta=meta)
    return replace(
        question,
        id=f"{question.id}-unanswerable",
        answers=(NOT_FOUND,),
        gold_ids=tuple(ident for ident in question.gold_ids if ident not in withheld),
        meta={**meta, "unanswerable": True, "withheld": lost, "twin_of": question.id},
    )
