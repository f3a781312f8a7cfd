"""The verdict of a study: paired comparisons of its arms over questions and seeds, and a verdict in fixed words.

*Holds here*: the 95 % interval of the difference, over the questions of all seeds, is on the side that the paper
claims, and so is the mean of every seed: an interval over questions does not cover the variance between trainings.
*Does not hold here*: the interval excludes the smallest difference that matters (`margin`) on that side. Otherwise:
*cannot tell at this size*.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import TypeAlias

import numpy as np

from coseek.core.errors import DataError
from coseek.core.settings import Settings
from coseek.measure.intervals import Interval, bootstrap_mean
from coseek.studies.study import Expectation

LEAST = 30
"""Smallest number of questions for a verdict: the bootstrap interval of a few equal differences has no width."""
Values: TypeAlias = Mapping[str, Mapping[str, float]]
"""Question, or training step → metric → number."""


class StudyVerdict(StrEnum):
    """The fixed words."""

    HOLDS = "holds here"
    FAILS = "does not hold here"
    OPEN = "cannot tell at this size"


class ArmComparison(Settings):
    """The difference of two arms, the expectation's `one` − `other`."""

    expected: str
    """The expectation as a sentence."""
    metric: str
    """The metric of the numbers."""
    difference: Interval
    """The first arm's minus the other's, over the questions of all seeds."""
    seeds: tuple[float, ...]
    """The mean difference of each seed."""
    verdict: StudyVerdict
    """The verdict, in the fixed words."""
    questions_that_would_tell: int | None
    """Questions that would decide, if the difference stayed the same."""

    @classmethod
    def of(cls, expected: Expectation, metric: str, difference: Interval, seeds: tuple[float, ...]) -> "ArmComparison":
        """The comparison with its verdict."""
        verdict = _verdict(expected, difference, seeds)
        return cls(
            expected=str(expected), metric=metric, difference=difference, seeds=seeds, verdict=verdict,
            questions_that_would_tell=_questions_needed(expected, difference) if verdict is StudyVerdict.OPEN else None,
        )  # fmt: skip


def _verdict(expected: Expectation, difference: Interval, seeds: Sequence[float]) -> StudyVerdict:
    low, high, margin = difference.low, difference.high, expected.margin
    if low is None or high is None or difference.n < LEAST:
        return StudyVerdict.OPEN
    if expected.sign == "=":
        if -margin < low and high < margin:
            return StudyVerdict.HOLDS
        return StudyVerdict.FAILS if low > margin or high < -margin else StudyVerdict.OPEN
    if expected.sign == "<":
        low, high = -high, -low
    one_way = all((mean > 0) == (expected.sign == ">") and mean != 0 for mean in seeds)
    if low > 0:
        return StudyVerdict.HOLDS if one_way else StudyVerdict.OPEN
    return StudyVerdict.FAILS if high < margin else StudyVerdict.OPEN


def _questions_needed(expected: Expectation, difference: Interval) -> int | None:
    """Questions that would shrink an undecided interval until it excludes 0 or the margin. `None` if seeds disagree:
    it excludes 0 already, and more questions do not help."""
    low, high, mean, margin = difference.low, difference.high, difference.mean, expected.margin
    if low is None or high is None:
        return None
    if expected.sign == "=":
        gap = abs(margin - abs(mean))
        factor = (high - low) / 2 / gap if gap else math.inf
    else:
        if low > 0 or high < 0:
            return None
        if expected.sign == "<":
            low, high, mean = -high, -low, -mean
        sides = ((mean - low, mean), (high - mean, margin - mean))  # to exclude 0, or the margin
        factor = min((width / gap for width, gap in sides if gap > 0), default=math.inf)
    return None if math.isinf(factor) else max(LEAST, difference.n + 1, math.ceil(difference.n * factor**2))


def overall(findings: Sequence[ArmComparison]) -> StudyVerdict:
    """The verdict of a study: all of its comparisons must hold."""
    verdicts = {finding.verdict for finding in findings}
    if StudyVerdict.FAILS in verdicts:
        return StudyVerdict.FAILS
    return StudyVerdict.HOLDS if verdicts == {StudyVerdict.HOLDS} else StudyVerdict.OPEN


def compare(expected: Expectation, metric: str, arm: Sequence[Values], other: Sequence[Values]) -> ArmComparison:
    """Compare two arms under the same seeds, on their common questions. A question's difference is the mean over the
    seeds that have it. Raises `DataError` if there are no common questions."""
    by_seed = [paired(a, b, metric) for a, b in zip(arm, other, strict=True)]
    differences: dict[str, list[float]] = {}
    for values in by_seed:
        for ident, value in values.items():
            differences.setdefault(ident, []).append(value)
    interval = bootstrap_mean([fmean(values) for values in differences.values()], np.random.default_rng(0))
    if interval is None:
        raise DataError(f"{expected}: the two share no question with {metric}; see the logs of their commands")
    return ArmComparison.of(expected, metric, interval, tuple(fmean(values.values()) for values in by_seed if values))


def paired(arm: Values, other: Values, metric: str) -> dict[str, float]:
    """`arm` − `other`, by question."""
    return {
        ident: values[metric] - other[ident][metric]
        for ident, values in arm.items()
        if metric in values and metric in other.get(ident, {})
    }
