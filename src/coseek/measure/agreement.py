"""Agreement: agreement of two judges on the same responses."""

from collections.abc import Mapping, Sequence
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
        whole = self.judged**2
        return None if expected == whole else (observed - expected) / (whole - expected)

    def to_json(self) -> JsonObject:
        return {
            "judged": self.judged,
            "unread": self.unread,
            "share": None if self.share is None else interval_json(self.share),
            "kappa": self.kappa,
            "both_yes": self.both_yes,
            "both_no": self.both_no,
            "only_first": self.only_first,
            "only_second": self.only_second,
        }


def agreement(first: Verdicts, second: Verdicts, seed: int = 0) -> Agreement:
    """Compare two judges response by response."""
    keys = sorted(first.keys() | second.keys())
    pairs = [(_said(first, key), _said(second, key)) for key in keys]
    counts = {pair: pairs.count(pair) for pair in ((True, True), (False, False), (True, False), (False, True))}
    equal = [float(one == other) for one, other in pairs if one is not None and other is not None]
    return Agreement(
        both_yes=counts[True, True],
        both_no=counts[False, False],
        only_first=counts[True, False],
        only_second=counts[False, True],
        unread=len(pairs) - len(equal),
        share=bootstrap_mean(equal, np.random.default_rng(seed)),
    )


def agreements(judges: Mapping[str, Verdicts], seed: int = 0) -> dict[tuple[str, str], Agreement]:
    """Every pair of judges."""
    return {(one, other): agreement(judges[one], judges[other], seed) for one, other in combinations(judges, 2)}


def agreement_table(found: Mapping[tuple[str, str], Agreement]) -> Table:
    """One row per pair of judges."""
    rows: list[Sequence[str]] = [
        (
            f"{first} · {second}",
            str(one.judged),
            show(one.share),
            "–" if one.kappa is None else f"{one.kappa:.3f}",
            str(one.only_first),
            str(one.only_second),
            str(one.unread),
        )
        for (first, second), one in found.items()
    ]
    columns = ("judges", "responses", "agree", "Cohen's κ", "only the first says yes", "only the second", "unreadable")
    return Table(columns, tuple(map(tuple, rows)))


def _said(verdicts: Verdicts, key: tuple[str, str]) -> bool | None:
    verdict = verdicts.get(key)
    return None if verdict is None else verdict.right
