import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most

from coseek.measure.intervals import bootstrap_mean, paired_difference

values = st.lists(st.floats(-5, 5), min_size=2, max_size=30)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_no_values_have_no_mean() -> None:
    assert bootstrap_mean([], rng()) is None


def test_one_value_has_a_mean_and_no_interval() -> None:
    one = bootstrap_mean([0.4], rng())
    assert one is not None
    assert (one.mean, one.low, one.high, one.n) == (0.4, None, None, 1)
    assert str(one) == "0.400 (n=1)"


@given(st.floats(-5, 5), st.integers(2, 40))
@settings(max_examples=at_most(50))
def test_values_without_spread_have_an_interval_without_width(value: float, n: int) -> None:
    interval = bootstrap_mean([value] * n, rng(), resamples=200)
    assert interval is not None and interval.low is not None and interval.high is not None
    assert interval.low == pytest.approx(value, abs=1e-9) == interval.high


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


def test_the_same_seed_gives_the_same_interval() -> None:
    data = [0.0, 1.0, 1.0, 0.5, 0.0]
    assert bootstrap_mean(data, rng(3)) == bootstrap_mean(data, rng(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_was_not_measured_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap_mean([0.0, bad], rng())


def test_a_difference_is_taken_on_shared_questions_and_the_others_are_counted() -> None:
    a = {"q1": 0.0, "q2": 1.0, "q3": 0.0}
    b = {"q2": 1.0, "q3": 1.0, "q4": 0.0, "q5": 1.0}
    found = paired_difference(a, b, rng())
    assert found is not None
    assert (found.difference.mean, found.difference.n, found.only_a, found.only_b) == (0.5, 2, 1, 2)


def test_runs_that_share_no_question_have_no_difference() -> None:
    assert paired_difference({"q1": 1.0}, {"q2": 1.0}, rng()) is None


def test_a_run_does_not_differ_from_itself() -> None:
    a = {f"q{n}": float(n % 3) for n in range(30)}
    found = paired_difference(a, a, rng())
    assert found is not None
    assert (found.difference.mean, found.p) == (0, 1)


def test_one_question_proves_nothing() -> None:
    found = paired_difference({"q": 0.0}, {"q": 1.0}, rng())
    assert found is not None
    assert (found.difference.low, found.p) == (None, 1)


def test_the_p_value_is_that_of_all_sign_patterns() -> None:
    differences = [0.5, 0.25, -0.125, 0.75, 0.5, 0.0, 1.0]
    a = {str(n): 0.0 for n in range(len(differences))}
    b = {str(n): value for n, value in enumerate(differences)}
    patterns = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(sign * value for sign, value in zip(signs, differences, strict=True))) for signs in patterns]
    exact = sum(value >= abs(sum(differences)) - 1e-12 for value in sums) / len(sums)
    found = paired_difference(a, b, rng(), resamples=40_000)
    assert found is not None
    assert found.p == pytest.approx(exact, abs=0.01)


def test_swapping_the_runs_turns_the_difference_round() -> None:
    generator = rng(5)
    a = {f"q{n}": float(value) for n, value in enumerate(generator.random(50) < 0.4)}
    b = {f"q{n}": float(value) for n, value in enumerate(generator.random(50) < 0.7)}
    there, back = paired_difference(a, b, rng()), paired_difference(b, a, rng())
    assert there is not None and back is not None
    assert there.difference.mean == -back.difference.mean
    assert there.p == back.p


def test_chance_alone_is_called_significant_about_one_time_in_twenty() -> None:
    generator = rng(11)
    hits = 0
    for _ in range(300):
        a, b = (generator.random((2, 60)) < 0.5).astype(float)
        named = [{str(n): float(value) for n, value in enumerate(run)} for run in (a, b)]
        found = paired_difference(named[0], named[1], generator, resamples=400)
        assert found is not None
        hits += found.p <= 0.05
    assert hits / 300 < 0.09
