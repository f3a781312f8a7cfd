import pytest

from coseek.core.errors import DataError
from coseek.measure.intervals import Interval
from coseek.studies.study import Expectation
from coseek.studies.verdict import ArmComparison, StudyVerdict, Values, compare, overall


def finding(
    sign: str, low: float, high: float, seeds: tuple[float, ...], n: int = 300, margin: float = 0.02
) -> ArmComparison:
    expected = Expectation.model_validate({"one": "A", "sign": sign, "other": "B", "margin": margin})
    return ArmComparison(expected, "em", Interval((low + high) / 2, low, high, n), seeds)


@pytest.mark.parametrize(
    ("sign", "low", "high", "seeds", "verdict"),
    [
        (">", 0.01, 0.09, (0.05, 0.05), StudyVerdict.HOLDS),
        (">", 0.01, 0.09, (0.15, -0.05), StudyVerdict.OPEN),  # one seed says the opposite
        (">", -0.01, 0.09, (0.04, 0.04), StudyVerdict.OPEN),
        (">", -0.03, 0.01, (-0.01, -0.01), StudyVerdict.FAILS),  # a gain of .02 is excluded
        (">", -0.09, -0.03, (-0.06, -0.06), StudyVerdict.FAILS),
        ("<", -0.09, -0.01, (-0.05, -0.05), StudyVerdict.HOLDS),
        ("<", -0.09, 0.01, (-0.04, -0.04), StudyVerdict.OPEN),
        ("<", 0.03, 0.09, (0.06, 0.06), StudyVerdict.FAILS),
        ("=", -0.01, 0.015, (0.0, 0.0), StudyVerdict.HOLDS),
        ("=", -0.01, 0.03, (0.01, 0.01), StudyVerdict.OPEN),
        ("=", 0.03, 0.06, (0.04, 0.05), StudyVerdict.FAILS),
    ],
)
def test_a_verdict_needs_the_interval_and_every_seed(
    sign: str, low: float, high: float, seeds: tuple[float, ...], verdict: StudyVerdict
) -> None:
    assert finding(sign, low, high, seeds).verdict is verdict


def test_a_few_equal_questions_tell_nothing() -> None:
    assert finding(">", 0.0, 0.0, (0.0,), n=4).verdict is StudyVerdict.OPEN


def test_what_would_tell_shrinks_the_interval_to_the_nearer_of_0_and_the_margin() -> None:
    # Mean .03, half width .06: four times the questions end at 0; an excluded .02 would be further from .03.
    assert finding(">", -0.03, 0.09, (0.03,), n=100).needed == 400
    # Mean 0: .02 is excluded at half width .02, a third of it.
    assert finding(">", -0.06, 0.06, (0.0,), n=100).needed == 900
    assert finding(">", 0.01, 0.09, (0.15, -0.05)).needed is None  # seeds disagree: questions decide nothing
    assert finding(">", 0.01, 0.09, (0.05,)).needed is None


def test_one_comparison_that_fails_fails_a_study_and_an_open_one_keeps_it_open() -> None:
    holds, fails, stays = (finding(">", *ends, (ends[1],)) for ends in ((0.01, 0.05), (-0.05, 0.0), (-0.05, 0.1)))
    assert overall([holds, holds]) is StudyVerdict.HOLDS
    assert overall([holds, stays]) is StudyVerdict.OPEN
    assert overall([holds, stays, fails]) is StudyVerdict.FAILS


def test_questions_are_paired_and_averaged_over_seeds_before_the_interval() -> None:
    one: list[Values] = [{"a": {"em": 1.0}, "b": {"em": 0.0}, "c": {"em": 1.0}}, {"a": {"em": 1.0}, "b": {"em": 1.0}}]
    other: list[Values] = [{"a": {"em": 0.0}, "b": {"em": 0.0}, "d": {"em": 0.0}}, {"a": {"em": 0.0}, "b": {"em": 1.0}}]
    found = compare(Expectation(one="A", sign=">", other="B"), "em", one, other)
    assert found.difference.n == 2 and found.difference.mean == 0.5
    assert found.seeds == (0.5, 0.5)
    with pytest.raises(DataError, match="share no question"):
        compare(Expectation(one="A", sign=">", other="B"), "em", [{"a": {"em": 1.0}}], [{"z": {"em": 1.0}}])
