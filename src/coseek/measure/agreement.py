"""Agreement of two judges on the same responses."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from coseek.core.files import JsonObject
from coseek.measure.intervals import Interval, bootstrap_mean
from coseek.measure.score import Verdicts
from coseek.measure.table import Table, interval_json, show


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts over the responses with verdicts of both judges."""

    both_yes: int
    both_no: int
    only_first: int
    """Accepted by the first judge only."""
    only_second: int
    unread: int
    """Responses without a verdict of at least one judge; in none of the counts above."""
    share: Interval | None
    """Share of equal verdicts."""

    @property
    def judged(self) -> int:
        return self.both_yes + self.both_no + self.only_first + self.only_second

    @property
    def kappa(self) -> float | None:
        """Cohen's κ: (observed − expected) / (1 − expected); 1 for full agreement, 0 for chance agreement.

        `None` if both judges give the same single verdict to all responses: expected agreement is then 1 (Cohen, Educ.
        Psychol. Meas. 1960).
        """
        if not self.judged:
            return None
        first, second = self.both_yes + self.only_first, self.both_yes + self.only_second
        # Integers up to the last division, so that an expected agreement of 1 is detected exactly.
        expected = first * second + (self.judged - first) * (self.judged - second)
        observed = (self.both_yes + self.both_no) * self.judged
        squared = self.judged**2
        return None if expected == squared else (observed - expected) / (squared - expected)

    def to_json(self) -> JsonObject:
        names = ("judged", "unread", "both_yes", "both_no", "only_first", "only_second")
        counts: JsonObject = {name: getattr(self, name) for name in names}
        return {**counts, "share": interval_json(self.share), "kappa": self.kappa}


def agreement(first: Verdicts, second: Verdicts) -> Agreement:
    """Compare two judges response by response."""

    def right(judge: Verdicts, key: tuple[str, str]) -> bool | None:
        verdict = judge.get(key)
        return None if verdict is None else verdict.right

    pairs = [(right(first, key), right(second, key)) for key in sorted(first.keys() | second.keys())]
    counts = Counter(pairs)
    matches = [float(left == right) for left, right in pairs if left is not None and right is not None]
    return Agreement(
        both_yes=counts[True, True],
        both_no=counts[False, False],
        only_first=counts[True, False],
        only_second=counts[False, True],
        unread=len(pairs) - len(matches),
        share=bootstrap_mean(matches, np.random.default_rng(0)),
    )


def agreements(judges: Mapping[str, Verdicts]) -> dict[tuple[str, str], Agreement]:
    """Every pair of judges."""
    return {(left, right): agreement(judges[left], judges[right]) for left, right in combinations(judges, 2)}


def agreement_table(by_pair: Mapping[tuple[str, str], Agreement]) -> Table:
    """One row per pair of judges."""
    rows: list[tuple[str, ...]] = []
    for (first, second), pair in by_pair.items():
        kappa = "–" if pair.kappa is None else f"{pair.kappa:.3f}"
        counts = map(str, (pair.only_first, pair.only_second, pair.unread))
        rows.append((f"{first} · {second}", str(pair.judged), show(pair.share), kappa, *counts))
    columns = ("judges", "responses", "agree", "Cohen's κ", "only the first says yes", "only the second", "unreadable")
    return Table(columns, tuple(rows))
