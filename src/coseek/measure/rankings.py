"""Rankings: metrics of a ranked list of passages. Pure functions; `ids` are best first.

`gold` is a set of relevant ids (grade 1) or a grade by id; a grade of 0 or less is not relevant. The conventions are
trec_eval's, with two differences:

- A repeated id counts once, at its first rank. (trec_eval rejects such a list.)
- Without relevant ids a metric is `None`, where trec_eval has 0.

Ties are resolved before: a retriever keeps corpus order, a TREC run file is read in trec_eval's order
(`coseek.data.trec`).
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from coseek.core.errors import SettingError, UnknownName
from coseek.data.answers import can_match, cover_match

Gold: TypeAlias = Collection[str] | Mapping[str, int]
"""The relevant ids, or the grade of every judged one."""
Gain: TypeAlias = Literal["linear", "exponential"]
"""Gain of a grade g: g (trec_eval, BEIR) or 2^g − 1 (Burges et al., ICML 2005). Equal for grades 0 and 1."""
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
    """nDCG@k: Σ gain / log2(rank + 1) over the first `k`, divided by the ideal DCG, in [0, 1].

    Ideal: the best `k` judged passages by descending grade (Järvelin and Kekäläinen, TOIS 2002, with trec_eval's
    discount). `None` if nothing is relevant.
    """
    relevant = grades(gold)
    if not relevant:
        return None
    gains = {ident: float(grade if gain == "linear" else 2**grade - 1) for ident, grade in relevant.items()}
    discounted = _discounted_sum(gains.get(ident, 0.0) for ident in first(ids, k))
    return discounted / _discounted_sum(islice(sorted(gains.values(), reverse=True), k))


def answer_hit(answers: Collection[str], texts: Iterable[str], k: int | None = None) -> bool | None:
    """Whether one of the first `k` texts contains a gold answer as whole words; `None` without one that can match."""
    return any(cover_match(text, answers) for text in islice(texts, k)) if can_match(answers) else None


def grades(gold: Gold) -> dict[str, int]:
    """The relevant ids with their grades."""
    if isinstance(gold, Mapping):
        return {ident: grade for ident, grade in gold.items() if grade > 0}
    return dict.fromkeys(gold, 1)


def first(ids: Iterable[str], k: int | None) -> list[str]:
    """The first `k` different ids."""
    return list(islice(dict.fromkeys(ids), k))


def _discounted_sum(gains: Iterable[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


@dataclass(frozen=True, slots=True)
class JudgedRanking:
    """Ranking of one question with its judgements."""

    gold: Mapping[str, int]
    answers: tuple[str, ...]
    ids: tuple[str, ...]
    texts: tuple[str, ...] | None
    """Title and text of each; `None` if only ids are known."""


Measure: TypeAlias = Callable[[JudgedRanking, int | None], float | None]

FAMILIES: dict[str, Measure] = {
    # share of the relevant passages
    "recall": lambda ranking, k: recall(ranking.gold, ranking.ids, k),
    # every relevant passage is retrieved
    "all_gold": lambda ranking, k: all_gold(ranking.gold, ranking.ids, k),
    # 1 / rank of the first relevant passage
    "mrr": lambda ranking, k: reciprocal_rank(ranking.gold, ranking.ids, k),
    # discounted cumulative gain over the ideal one
    "ndcg": lambda ranking, k: ndcg(ranking.gold, ranking.ids, k),
    # the same with a gain of 2^grade − 1
    "ndcg_exp": lambda ranking, k: ndcg(ranking.gold, ranking.ids, k, "exponential"),
    # a passage contains a gold answer
    "answer_hit": lambda ranking, k: None if ranking.texts is None else answer_hit(ranking.answers, ranking.texts, k),
}
"""Ranking metrics by name. All lie in [0, 1]; `@k` after the name limits them to the first k."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its name: `recall@5`, `ndcg@10`, `mrr` …"""

    name: str
    k: int | None
    measure: Measure

    @classmethod
    def named(cls, name: str) -> "Metric":
        """The metric of a name. Raises `UnknownName` with the nearest one."""
        match = _NAME.fullmatch(name)
        if match is None or match[1] not in FAMILIES:
            cutoff = f"@{match[2]}" if match and match[2] else "@10"
            raise UnknownName("metric", name, [f"{family}{cutoff}" for family in FAMILIES])
        return cls(name, int(match[2]) if match[2] else None, FAMILIES[match[1]])

    def of(self, judged: JudgedRanking) -> float | None:
        """The value; `None` if it is undefined for this question."""
        value = self.measure(judged, self.k)
        return None if value is None else float(value)


def metrics_within(depth: int, names: Iterable[str]) -> tuple[Metric, ...]:
    """Return the metrics of some names. Raises `SettingError` without any, and for one whose cut-off is deeper than the
    search, which would be too low."""
    metrics = tuple(map(Metric.named, dict.fromkeys(names)))
    if not metrics:
        raise SettingError(f"no metric is named; choose some of {', '.join(FAMILIES)}")
    for metric in metrics:
        if metric.k is not None and metric.k > depth:
            raise SettingError(
                f"{metric.name} reads {metric.k} passages, and --depth is {depth}; search deeper with "
                f"--depth {metric.k}"
            )
    return metrics
