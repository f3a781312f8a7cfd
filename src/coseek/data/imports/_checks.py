"""Import checks: questions and gold answers that can teach and measure nothing, counted for every format."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coseek.data.gold_answers import normalise
from coseek.data.question import Question

NO_TEXT = "questions without a text, left out"
EMPTY = "empty gold answers, left out"
UNMATCHED = (
    "questions whose gold answers no answer can match (nothing is left of them without articles and punctuation)"
)
NO_GOLD = "questions without a gold answer, which no answer metric counts"


def checked_splits(
    splits: Mapping[str, Sequence[Question]], notes: Mapping[str, int]
) -> tuple[dict[str, list[Question]], dict[str, int]]:
    """The splits without empty questions and empty gold answers, and `notes` with what was counted."""
    counts = Counter(notes)
    kept = {
        name: [_checked(one, counts) for one in questions if _has_text(one, counts)]
        for name, questions in splits.items()
    }
    asked = [one for questions in kept.values() for one in questions if one.answerable]
    without = [one for one in asked if not one.answers]
    if len(without) < len(asked) or not all("relevance" in one.meta for one in asked):
        counts[NO_GOLD] += len(without)  # a set for retrieval alone has none, and needs none
    return {name: questions for name, questions in kept.items() if questions}, {
        name: count for name, count in counts.items() if count or name in notes
    }


def _has_text(question: Question, counts: Counter[str]) -> bool:
    has = bool(question.question.strip())
    counts[NO_TEXT] += not has
    return has


def _checked(question: Question, counts: Counter[str]) -> Question:
    """The question without empty gold answers."""
    answers = tuple(one for one in question.answers if one.strip())
    counts[EMPTY] += len(question.answers) - len(answers)
    if answers and not any(map(normalise, answers)):
        counts[UNMATCHED] += 1
    return question if len(answers) == len(question.answers) else replace(question, answers=answers)
