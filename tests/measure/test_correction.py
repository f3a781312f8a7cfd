"""McNemar, Holm and macro means against slow definitions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.measure.intervals import bootstrap_mean, holm, macro_mean, mcnemar, paired_difference

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
    found = paired_difference(a, b, np.random.default_rng(0))
    assert found is not None and found.mcnemar == pytest.approx(0.625)
    half = paired_difference(a, {**b, "1": 0.5}, np.random.default_rng(0))
    assert half is not None and half.mcnemar is None


def test_the_two_tests_agree_on_what_is_right_or_wrong() -> None:
    a = {str(n): float(n % 3 == 0) for n in range(90)}
    b = {str(n): float(n % 3 == 0 or n % 7 == 0) for n in range(90)}
    found = paired_difference(a, b, np.random.default_rng(0), resamples=40_000)
    assert found is not None and found.mcnemar is not None
    assert found.p == pytest.approx(found.mcnemar, abs=0.005)


def test_holm_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1, 1]


@given(p_values)
def test_holm_lies_between_the_p_values_and_bonferroni_and_keeps_their_order(values: list[float]) -> None:
    corrected = holm(values)
    for value, found in zip(values, corrected, strict=True):
        assert value <= found <= min(1, value * len(values)) or found == pytest.approx(value)
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [corrected[place] for place in order] == sorted(corrected)


@given(p_values.filter(bool), st.floats(0.001, 0.5))
def test_holm_rejects_what_stepping_down_rejects(values: list[float], level: float) -> None:
    rejected = set()
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[index] * (len(values) - place) > level:
            break
        rejected.add(index)
    assert {index for index, found in enumerate(holm(values)) if found <= level} == rejected


def test_every_group_weighs_the_same_in_a_macro_mean() -> None:
    found = macro_mean([[1.0] * 9 + [0.0], [0.0, 1.0]], np.random.default_rng(0))
    assert found is not None and found.mean == pytest.approx(0.7) and found.n == 12
    assert found.low is not None and found.high is not None and found.low < 0.5 < 0.9 < found.high


def test_one_group_has_the_interval_of_its_own_mean() -> None:
    values = [float(n % 3 == 0) for n in range(50)]
    assert macro_mean([values], np.random.default_rng(3)) == bootstrap_mean(values, np.random.default_rng(3))


def test_a_macro_mean_over_an_empty_group_is_none() -> None:
    assert macro_mean([[1.0], []], np.random.default_rng(0)) is None
    assert macro_mean([], np.random.default_rng(0)) is None
    lonely = macro_mean([[1.0], [0.0, 0.0]], np.random.default_rng(0))
    assert lonely is not None and (lonely.mean, lonely.low) == (0.5, None)
