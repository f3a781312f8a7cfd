"""Intervals: bootstrap intervals of means, and paired tests of two runs on their common questions.

The bootstrap draws n questions with replacement. Frequent values (mostly 0 and 1) are drawn as counts from the
multinomial distribution, which is equivalent and faster.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 10_000
"""Bootstrap resamples; the ends of a 95 % interval then vary with the seed by about 1 % of its width."""
TAIL = (1 - 0.95) / 2
"""Share of the resamples above a 95 % interval, and below it."""
_CHUNK = 2_000_000
"""Maximum number of values drawn at once, which bounds memory."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its bootstrap interval; `low` and `high` are `None` for a single value."""

    mean: float
    low: float | None
    high: float | None
    n: int
    unread: int = 0
    """Number of the `n` values with missing verdicts. These count as 0, so that `mean` is a lower bound."""
    most: float | None = None
    """Upper bound: the mean if all missing verdicts were yes; `None` without missing verdicts."""

    def __str__(self) -> str:
        return self.text(size=f" (n={self.n})")

    def text(self, decimals: int = 3, size: str = "") -> str:
        """`0.512 [0.470, 0.555]`; without an interval the mean and `size`."""
        mean = f"{'≥ ' if self.unread else ''}{self.mean:.{decimals}f}"
        if self.low is not None and self.high is not None:
            size = f" [{self.low:.{decimals}f}, {self.high:.{decimals}f}]"
        return f"{mean}{size}" + (f" ({self.unread} of {self.n} unread)" if self.unread else "")


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired difference B − A on common questions."""

    difference: Interval
    """Mean of B − A over questions."""
    p: float
    """Two-sided p-value of the paired randomisation test; 1 if all values are equal."""
    only_a: int
    """Questions only in A; not in the difference."""
    only_b: int
    mcnemar: float | None = None
    """p-value of McNemar's exact test; `None` if a value is neither 0 nor 1."""


def bootstrap_mean(values: Sequence[float], rng: np.random.Generator, resamples: int = RESAMPLES) -> Interval | None:
    """Mean and percentile-bootstrap interval; `None` for no values.

    n = 1 gives no interval. Equal values give an interval of width 0, which underestimates the uncertainty: 0 of 100
    right is compatible with about 3 %.
    """
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise ValueError("a mean needs finite values; leave out missing ones")
    if data.size == 0:
        return None
    mean = float(data.mean())
    if data.size == 1:
        return Interval(mean, None, None, 1)
    return _percentiles(mean, _resampled_means(data, rng, resamples), data.size)


def bootstrap_ratio(
    parts: Sequence[float], wholes: Sequence[float], rng: np.random.Generator, resamples: int = RESAMPLES
) -> Interval | None:
    """Σ parts / Σ wholes and its percentile-bootstrap interval over pairs; `None` where the wholes add up to 0.

    Neither may be negative. There is no interval if its upper end is infinite, as for one right answer in twenty.
    """
    pairs = np.array([parts, wholes], dtype=np.float64)
    if not np.isfinite(pairs).all() or (pairs < 0).any():
        raise ValueError("a ratio needs finite values that are not negative; leave out missing ones")
    if not pairs[1].sum() > 0:
        return None
    ratio, count = float(pairs[0].sum() / pairs[1].sum()), pairs.shape[1]
    if count == 1:
        return Interval(ratio, None, None, 1)
    chunk = max(1, _CHUNK // count)
    sums = np.concatenate([
        pairs[:, rng.integers(count, size=(min(chunk, resamples - start), count))].sum(axis=2)
        for start in range(0, resamples, chunk)
    ], axis=1)  # fmt: skip
    sums = sums[:, sums.any(axis=0)]  # without 0 / 0
    is_defined = sums[1] > 0
    if (~is_defined).sum() + 1 > (sums.shape[1] - 1) * TAIL:
        return Interval(ratio, None, None, count)
    finite_ratios = sums[0, is_defined] / sums[1, is_defined]
    # Infinite ratios lie above the upper end; where exactly does not move it.
    return _percentiles(ratio, np.append(finite_ratios, np.full((~is_defined).sum(), finite_ratios.max())), count)


def paired_difference(
    a: Mapping[str, float], b: Mapping[str, float], rng: np.random.Generator, resamples: int = RESAMPLES
) -> Difference | None:
    """B − A on common questions (keys), with a bootstrap interval and a paired test; `None` without common ones.

    The test is the paired randomisation (permutation) test: the share of random signs of the differences that give a
    mean at least as large. p is 1 for n = 1, and never 0: (1 + hits) / (1 + draws).
    """
    shared_keys = sorted(a.keys() & b.keys())
    if not shared_keys:
        return None
    differences = np.array([b[key] - a[key] for key in shared_keys], dtype=np.float64)
    interval = bootstrap_mean(differences.tolist(), rng, resamples)
    assert interval is not None
    binary = all(value in (0.0, 1.0) for key in shared_keys for value in (a[key], b[key]))
    return Difference(
        interval,
        _sign_test(differences, rng, resamples),
        len(a) - len(shared_keys),
        len(b) - len(shared_keys),
        mcnemar(int((differences > 0).sum()), int((differences < 0).sum())) if binary else None,
    )


def mcnemar(won: int, lost: int) -> float:
    """Two-sided p of McNemar's exact test: `won` questions are right in B alone, `lost` in A alone.

    p = min(1, 2 · P(Binomial(won + lost, ½) ≤ min(won, lost))) (McNemar, Psychometrika 1947; the exact form is the sign
    test).
    """
    tried = won + lost
    # Logarithms, because 0.5 ** tried is 0 in floating point from 1,075 on.
    terms = [
        math.lgamma(tried + 1) - math.lgamma(k + 1) - math.lgamma(tried - k + 1) for k in range(min(won, lost) + 1)
    ]
    highest = max(terms)
    tail = math.exp(highest - tried * math.log(2)) * math.fsum(math.exp(term - highest) for term in terms)
    return min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of a family of p-values, in their order.

    The i-th smallest of m is multiplied by m − i + 1 and is at least the one before it, which controls the family-wise
    error rate (Holm, Scand. J. Statist. 1979).
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = highest
    return corrected


def macro_mean(groups: Sequence[Sequence[float]], rng: np.random.Generator) -> Interval | None:
    """Unweighted mean of the groups' means; `None` for no groups or an empty one.

    The bootstrap draws within groups. There is no interval if a group has a single value. `n` counts all values.
    """
    if len(groups) == 1:
        return bootstrap_mean(groups[0], rng)
    if not groups or not all(groups):
        return None
    mean = math.fsum(math.fsum(group) / len(group) for group in groups) / len(groups)
    count = sum(map(len, groups))
    if min(map(len, groups)) == 1:
        return Interval(mean, None, None, count)
    resampled_sum = sum(_resampled_means(np.asarray(group, dtype=np.float64), rng, RESAMPLES) for group in groups)
    return _percentiles(mean, np.asarray(resampled_sum) / len(groups), count)


def _percentiles(mean: float, resampled_means: Floats, count: int) -> Interval:
    low, high = np.quantile(resampled_means, [TAIL, 1 - TAIL])
    # Another summation order may move an interval of width 0 off its mean by a rounding error.
    return Interval(mean, min(float(low), mean), max(float(high), mean), count)


def _resampled_means(data: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    levels, counts = np.unique(data, return_counts=True)
    by_level = levels.size * 5 < data.size  # a multinomial draw costs about five times as much as picking a row
    chunk = max(1, _CHUNK // (levels.size if by_level else data.size))
    shares = counts / data.size
    means = np.empty(resamples)
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        if by_level:
            means[start : start + size] = rng.multinomial(data.size, shares, size) @ levels / data.size
        else:
            means[start : start + size] = data[rng.integers(data.size, size=(size, data.size))].mean(axis=1)
    return means


def _sign_test(differences: Floats, rng: np.random.Generator, resamples: int) -> float:
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    observed = abs(float(differences.sum()))
    # Of m differences of one size, Binomial(m, ½) are positive; their sum is size · (2·positive − m).
    positive = rng.binomial(counts, 0.5, size=(resamples, sizes.size))
    sums = np.abs((2 * positive - counts) @ sizes)
    hits = int((sums >= observed - 1e-9 * max(1.0, observed)).sum())
    return (1 + hits) / (1 + resamples)
