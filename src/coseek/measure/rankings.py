"""Rankings: how good a list of passages is, given what is relevant. Pure functions; `ids` are best first.

`gold` is either the ids that are relevant (each of grade 1) or a grade for each, and a grade of 0 or less is not
relevant. The conventions are trec_eval's, with two said differences:

- An id that stands twice in a list counts once, where it stands first. (trec_eval refuses such a list.)
- Where nothing is relevant there is nothing to measure, and the answer is `None`: no number, rather than trec_eval's 0.

Equal scores have been put in order before a list comes here: a retriever keeps corpus order, a TREC run file is read
in trec_eval's order (`coseek.data.trec`).
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from coseek.core.errors import UnknownName
from coseek.measure.answers import cover_match

Gold: TypeAlias = Collection[str] | Mapping[str, int]
"""The relevant ids, or the grade of every judged one."""
Gain: TypeAlias = Literal["linear", "exponential"]
"""What a grade g is worth: g (trec_eval, BEIR) or 2^g − 1 (Burges and others, ICML 2005). Alike for grades 0 and 1."""
_NAME = re.compile(r"([a-z_]+)(?:@([1-9][0-9]{0,8}))?")


def recall(gold: Gold, ids: Iterable[str], k: int | None = None) -> float | None:
    """Share of the relevant passages among the first `k` (of all without `k`), in [0, 1]; `None` without any."""
    relevant = grades(gold)
    return len(relevant.keys() & set(first(ids, k))) / len(relevant) if relevant else None


def all_gold(gold: Gold, ids: Iterable[str], k: int | None = None) -> bool | None:
    """Whether every relevant passage is among the first `k`; `None` without any."""
    relevant = grades(gold)
    return relevant.keys() <= set(first(ids, k)) if relevant else None


def reciprocal_rank(gold: Gold, ids: Iterable[str], k: int | None = None) -> float | None:
    """1 / rank of the first relevant passage (rank from 1), 0 when none is among the first `k`; `None` without any."""
    relevant = grades(gold)
    if not relevant:
        return None
    return next((1 / rank for rank, ident in enumerate(first(ids, k), start=1) if ident in relevant), 0.0)


def ndcg(gold: Gold, ids: Iterable[str], k: int | None = None, gain: Gain = "linear") -> float | None:
    """nDCG@k: Σ gain / log2(rank + 1) over the first `k`, divided by the most it could be, in [0, 1].

    The most it could be: the best `k` judged passages in falling grade (Järvelin and Kekäläinen, TOIS 2002, with
    trec_eval's discount). `None` if nothing is relevant.
    """
    relevant = grades(gold)
    if not relevant:
        return None
    worth = {ident: float(grade if gain == "linear" else 2**grade - 1) for ident, grade in relevant.items()}
    gained = _discounted(worth.get(ident, 0.0) for ident in first(ids, k))
    return gained / _discounted(islice(sorted(worth.values(), reverse=True), k))


def answer_hit(answers: Collection[str], texts: Iterable[str], k: int | None = None) -> bool | None:
    """Whether a gold answer stands, as whole words, in one of the first `k` texts; `None` without gold answers.

    Text by text, so that no answer is put together across two of them.
    """
    return any(cover_match(text, answers) for text in islice(texts, k)) if answers else None


def grades(gold: Gold) -> dict[str, int]:
    """The relevant ids with their grades."""
    if isinstance(gold, Mapping):
        return {ident: grade for ident, grade in gold.items() if grade > 0}
    return dict.fromkeys(gold, 1)


def first(ids: Iterable[str], k: int | None) -> list[str]:
    """The first `k` different ids."""
    return list(islice(dict.fromkeys(ids), k))


def _discounted(gains: Iterable[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


@dataclass(frozen=True, slots=True)
class Judged:
    """One question's list with all that says how good it is."""

    gold: Mapping[str, int]
    answers: tuple[str, ...]
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    """Title and text of each; `None` where only ids are known."""


Measure: TypeAlias = Callable[[Judged, int | None], float | None]

_FAMILIES: dict[str, Measure] = {
    "recall": lambda one, k: recall(one.gold, one.ids, k),
    "all_gold": lambda one, k: all_gold(one.gold, one.ids, k),
    "mrr": lambda one, k: reciprocal_rank(one.gold, one.ids, k),
    "ndcg": lambda one, k: ndcg(one.gold, one.ids, k),
    "ndcg_exp": lambda one, k: ndcg(one.gold, one.ids, k, "exponential"),
    "answer_hit": lambda one, k: None if one.texts is None else answer_hit(one.answers, one.texts, k),
}
FAMILIES: dict[str, str] = {
    "recall": "share of the relevant passages",
    "all_gold": "every relevant passage is there",
    "mrr": "1 / rank of the first relevant passage",
    "ndcg": "discounted gain of the grades, against the best possible",
    "ndcg_exp": "the same with a gain of 2^grade − 1",
    "answer_hit": "a gold answer stands in a passage",
}
"""Every metric of a ranking with what it means. All lie in [0, 1]; `@k` behind the name looks at the first k alone."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its name: `recall@5`, `ndcg@10`, `mrr` …"""

    name: str
    k: int | None
    measure: Measure

    @classmethod
    def named(cls, name: str) -> "Metric":
        """A misspelt name is refused with the nearest."""
        found = _NAME.fullmatch(name)
        if found is None or found[1] not in _FAMILIES:
            cut = f"@{found[2]}" if found and found[2] else "@10"
            raise UnknownName("metric", name, [f"{family}{cut}" for family in _FAMILIES])
        return cls(name, int(found[2]) if found[2] else None, _FAMILIES[found[1]])

    def of(self, judged: Judged) -> float | None:
        """The number, or `None` for what this question cannot have."""
        value = self.measure(judged, self.k)
        return None if value is None else float(value)
