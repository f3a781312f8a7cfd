"""Intervals, differences and p-values: against textbooks, slow definitions and chance."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most

from coseek.measure import intervals
from coseek.measure.intervals import (
    Interval,
    bootstrap_mean,
    bootstrap_ratio,
    holm,
    macro_mean,
    mcnemar,
    paired_difference,
)

values = st.lists(st.floats(-5, 5), min_size=2, max_size=30)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_one_value_has_a_mean_and_no_interval_and_none_have_neither() -> None:
    assert bootstrap_mean([0.4], rng()) == Interval(0.4, None, None, 1)
    assert bootstrap_mean([], rng()) is None


@given(values)
@settings(max_examples=at_most(50))
def test_an_interval_holds_its_mean_and_stays_inside_the_values(data: list[float]) -> None:
    interval = bootstrap_mean(data, rng(), resamples=300)
    assert interval is not None and interval.low is not None and interval.high is not None
    assert min(data) - 1e-9 <= interval.low <= interval.mean <= interval.high <= max(data) + 1e-9


@pytest.mark.parametrize("data", [[0.0, 1.0] * 200, list(np.linspace(0, 1, 400))], ids=["two levels", "all distinct"])
def test_the_interval_is_the_textbook_one_where_that_is_known(data: list[float]) -> None:
    interval = bootstrap_mean(data, rng())
    assert interval is not None and interval.low is not None and interval.high is not None
    half = 1.96 * float(np.std(data)) / len(data) ** 0.5
    assert interval.low == pytest.approx(interval.mean - half, abs=0.1 * half)
    assert interval.high == pytest.approx(interval.mean + half, abs=0.1 * half)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_was_not_measured_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap_mean([0.0, bad], rng())


def test_a_difference_is_taken_on_shared_questions_and_the_others_are_counted() -> None:
    a = {"q1": 0.0, "q2": 1.0, "q3": 0.0}
    b = {"q2": 1.0, "q3": 1.0, "q4": 0.0, "q5": 1.0}
    paired = paired_difference(a, b, rng())
    assert paired is not None
    assert (paired.difference.mean, paired.difference.n, paired.only_a, paired.only_b) == (0.5, 2, 1, 2)


def test_a_run_differs_neither_from_itself_nor_by_one_question_nor_from_one_of_other_questions() -> None:
    a = {f"q{n}": float(n % 3) for n in range(30)}
    same, single = paired_difference(a, a, rng()), paired_difference({"q": 0.0}, {"q": 1.0}, rng())
    assert same is not None and (same.difference.mean, same.p) == (0, 1)
    assert single is not None and (single.difference.low, single.p) == (None, 1)
    assert paired_difference({"q1": 1.0}, {"q2": 1.0}, rng()) is None


def test_the_p_value_is_that_of_all_sign_patterns() -> None:
    differences = [0.5, 0.25, -0.125, 0.75, 0.5, 0.0, 1.0]
    a = {str(n): 0.0 for n in range(len(differences))}
    b = {str(n): value for n, value in enumerate(differences)}
    patterns = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(sign * value for sign, value in zip(signs, differences, strict=True))) for signs in patterns]
    exact = sum(value >= abs(sum(differences)) - 1e-12 for value in sums) / len(sums)
    paired = paired_difference(a, b, rng(), resamples=40_000)
    assert paired is not None
    assert paired.p == pytest.approx(exact, abs=0.01)


# --- texts and numbers at their edges


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(0.5, 0.25, 0.75, 8), "0.500 [0.250, 0.750]"),
        (Interval(0.5, None, None, 1), "0.500 (n=1)"),
        (Interval(0.5, 0.25, 0.75, 8, unread=2, most=0.75), "≥ 0.500 [0.250, 0.750] (2 of 8 unread)"),
        (Interval(0.0, None, None, 1, unread=1, most=1.0), "≥ 0.000 (n=1) (1 of 1 unread)"),
        (Interval(0.5, 0.25, None, 8), "0.500 (n=8)"),
    ],
)
def test_an_interval_reads_as_its_numbers(interval: Interval, text: str) -> None:
    assert str(interval) == text


def test_a_macro_mean_weighs_sets_alike_and_counts_all_values() -> None:
    interval = macro_mean([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0]], rng())
    assert interval is not None and (interval.mean, interval.n) == (0.375, 6)
    wide = macro_mean([[1.0] * 9 + [0.0], [0.0, 1.0]], rng())
    assert wide is not None and wide.low is not None and wide.high is not None and wide.low < 0.5 < 0.9 < wide.high
    assert macro_mean([[1.0, 0.0], [1.0]], rng()) == Interval(0.75, None, None, 3)
    assert macro_mean([[1.0], []], rng()) is None and macro_mean([], rng()) is None


def test_a_ratio_has_an_interval_only_where_its_upper_end_has_a_whole() -> None:
    assert bootstrap_ratio([1.0], [2.0], rng()) == Interval(0.5, None, None, 1)
    assert bootstrap_ratio([0.0, 0.0], [0.0, 0.0], rng()) is None
    assert bootstrap_ratio([1.0] * 20, [1.0] + [0.0] * 19, rng()) == Interval(20.0, None, None, 20)
    interval = bootstrap_ratio([1.0, 0.0], [0.5, 0.5], rng())
    assert interval == Interval(1.0, 0.0, 2.0, 2)  # a small whole is a whole
    with pytest.raises(ValueError, match="not negative"):
        bootstrap_ratio([-1.0], [1.0], rng())


@pytest.mark.parametrize("levels", [2, 9])
def test_the_memory_that_resampling_may_take_changes_no_number(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [float(number % levels) for number in range(20)]
    mean, ratio = bootstrap_mean(values, rng(), 99), bootstrap_ratio(values, [1.0] * 20, rng(), 99)
    drawn = np.array(values)[rng().integers(20, size=(99, 20))].mean(axis=1)
    assert ratio is not None and (ratio.low, ratio.high) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])))
    monkeypatch.setattr(intervals, "_CHUNK", 40)  # two resamples at a time, or 20
    assert bootstrap_mean(values, rng(), 99) == mean and bootstrap_ratio(values, [1.0] * 20, rng(), 99) == ratio


# --- McNemar, Holm and macro means against slow definitions


p_values = st.lists(st.floats(0, 1), max_size=8)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(won: int, lost: int) -> None:
    tried = won + lost
    tail = sum(Fraction(math.comb(tried, k), 2**tried) for k in range(min(won, lost) + 1))
    assert mcnemar(won, lost) == pytest.approx(float(min(Fraction(1), 2 * tail)), rel=1e-9)
    assert mcnemar(won, lost) == mcnemar(lost, won)


def test_mcnemar_of_thousands_of_questions_is_a_number() -> None:
    assert mcnemar(5_000, 5_000) == 1
    # z = 400 / √10,000 = 4: two-sided 6.3e-5.
    assert mcnemar(5_200, 4_800) == pytest.approx(6.4e-5, rel=0.05)
    assert 0 <= mcnemar(20_000, 0) < 1e-300


def test_pairs_of_right_and_wrong_have_a_mcnemar_and_others_have_none() -> None:
    a = {"1": 0.0, "2": 0.0, "3": 1.0, "4": 1.0, "5": 0.0}
    b = {"1": 1.0, "2": 1.0, "3": 1.0, "4": 0.0, "5": 1.0}
    paired = paired_difference(a, b, np.random.default_rng(0))
    assert paired is not None and paired.mcnemar == pytest.approx(0.625)
    half = paired_difference(a, {**b, "1": 0.5}, np.random.default_rng(0))
    assert half is not None and half.mcnemar is None


@given(p_values.filter(bool), st.floats(0.001, 0.5))
def test_holm_rejects_what_stepping_down_rejects(values: list[float], level: float) -> None:
    rejected = set()
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[index] * (len(values) - rank) > level:
            break
        rejected.add(index)
    assert {index for index, p_value in enumerate(holm(values)) if p_value <= level} == rejected


def test_one_group_has_the_interval_of_its_own_mean() -> None:
    values = [float(n % 3 == 0) for n in range(50)]
    assert macro_mean([values], np.random.default_rng(3)) == bootstrap_mean(values, np.random.default_rng(3))
