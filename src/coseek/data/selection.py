"""Selection of questions: filters by data set, hops and type, and a seeded draw that keeps the shares of data sets.

Published files hold one data set after the other, so the first rows of a file do not stand for it.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence

from pydantic import field_validator

from coseek.core.errors import DataError, SettingError, nearest
from coseek.core.settings import Settings
from coseek.data.question import Question


class QuestionFilter(Settings):
    """The questions to use, by data set, hops and type."""

    sources: tuple[str, ...] | None = None
    """Only questions of these data sets."""
    hops: tuple[int, ...] | None = None
    """Only questions with these numbers of hops."""
    types: tuple[str, ...] | None = None
    """Only questions of these types: `bridge`, `comparison` … (HotpotQA), `composition` … (laptop worlds)."""
    answerable: bool | None = None
    """Only questions that are not marked as unanswerable, or only those that are."""

    @field_validator("sources", "hops", "types", mode="before")
    @classmethod
    def _list_of(cls, given: object) -> object:
        """One value, or several with commas between them, as a list."""
        return [one.strip() for one in str(given).split(",")] if isinstance(given, str | int) else given

    def apply(self, questions: Sequence[Question]) -> list[Question]:
        """The questions that pass, in order. Raises `SettingError` for a data set or type that no question has, and
        `DataError` when none is left."""
        _check_known("sources", "data set", self.sources, questions, lambda one: one.dataset)
        _check_known("types", "type", self.types, questions, lambda one: one.kind)
        chosen = [
            one
            for one in questions
            if (self.sources is None or one.dataset in self.sources)
            and (self.hops is None or one.hops in self.hops)
            and (self.types is None or one.kind in self.types)
            and (self.answerable is None or one.answerable == self.answerable)
        ]
        if questions and not chosen:
            raise DataError(f"none of the {len(questions)} questions is left; ask for less in `select`")
        return chosen


EVERY = QuestionFilter()
"""The filter that every question passes."""


def _check_known(
    setting: str,
    what: str,
    named: Iterable[str] | None,
    questions: Iterable[Question],
    of: Callable[[Question], str | None],
) -> None:
    if named is None:
        return
    known = sorted({value for one in questions if (value := of(one)) is not None})
    for name in named:
        if name not in known:
            has = f"They have: {', '.join(known)}" if known else f"They name no {what}"
            raise SettingError(
                f"select.{setting}: no question is of the {what} {name!r}{nearest(name, known)} {has}; null takes all"
            )


def draw(questions: Sequence[Question], count: int | None, seed: int, per_set: int | None = None) -> list[Question]:
    """Draw `count` questions, in their order; all of them when there are no more, or for `None`.

    Every data set keeps its share to within a question or so (Webster's method), and at least one question while
    `count` allows it. With `per_set` each data set is first cut to at most that many. The draw depends on `seed` and
    the questions' ids, not on their order, and a larger `count` or `per_set` only adds questions.
    """
    if per_set is None and (count is None or count >= len(questions)):
        return list(questions)
    strata: dict[str | None, list[tuple[bytes, int]]] = {}
    for place, question in enumerate(questions):
        text = f"{seed}/{question.id}".encode("utf-8", "surrogatepass")
        strata.setdefault(question.dataset, []).append((hashlib.blake2b(text, digest_size=16).digest(), place))
    ranked: list[tuple[float, bytes, int]] = []
    for members in strata.values():
        kept = sorted(members)[:per_set]
        for rank, (key, place) in enumerate(kept):
            ranked.append(((rank + 0.5) / len(kept) if rank else 0.0, key, place))
    drawn = ranked if count is None else heapq.nsmallest(count, ranked)
    return [questions[place] for place in sorted(place for *_, place in drawn)]
