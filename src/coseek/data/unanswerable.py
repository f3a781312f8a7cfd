"""Unanswerable twins: the same questions over a corpus that lacks some of the passages that they need.

All questions of a data set share its corpus, so a withheld passage makes every question unanswerable that needs it.
Such a question has `meta.unanswerable`, the ids in `meta.withheld`, and no gold answers; others are as they were.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from coseek.core.files import Json
from coseek.data.question import UNANSWERABLE, Question


def withhold(questions: Sequence[Question], share: float, rng: random.Random, needed: Collection[str] = ()) -> set[str]:
    """Ids of passages without which about `share` of the questions lose one that they need; none of `needed`."""
    withheld: set[str] = set()
    lost = 0
    for question in rng.sample(questions, len(questions)):
        if lost >= share * len(questions):
            break
        free = [ident for ident in question.gold_ids if ident not in needed]
        if free and withheld.isdisjoint(question.gold_ids):
            withheld.add(rng.choice(free))
            lost = sum(not withheld.isdisjoint(one.gold_ids) for one in questions)
    return withheld


def twins(questions: Mapping[str, Sequence[Question]], withheld: set[str]) -> dict[str, list[Question]]:
    """The questions of every split over the corpus without the withheld passages."""
    return {split: [_twin(question, withheld) for question in asked] for split, asked in questions.items()}


def _twin(question: Question, withheld: set[str]) -> Question:
    lost: list[Json] = [ident for ident in question.gold_ids if ident in withheld]
    meta = dict(question.meta)
    if isinstance(negatives := meta.get("negatives"), list):
        meta["negatives"] = [one for one in negatives if one not in withheld]
    if not lost:
        return replace(question, meta=meta)
    return replace(
        question,
        id=f"{question.id}-unanswerable",
        answers=(),
        gold_ids=tuple(ident for ident in question.gold_ids if ident not in withheld),
        meta={**meta, UNANSWERABLE: True, "withheld": lost, "twin_of": question.id},
    )
