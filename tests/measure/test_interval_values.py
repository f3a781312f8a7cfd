"""Texts and numbers of intervals, answers and rankings at their edges."""

import numpy as np
import pytest

from coseek.core.errors import SettingError, UnknownName
from coseek.data.answers import cover_match, f1
from coseek.measure import intervals
from coseek.measure.intervals import Interval, bootstrap_mean, bootstrap_ratio, holm, macro_mean, mcnemar
from coseek.measure.rankings import Metric, grades, metrics_within


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


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
    found = macro_mean([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0]], rng())
    assert found is not None and (found.mean, found.n) == (0.375, 6)
    assert macro_mean([[1.0, 0.0], [1.0]], rng()) == Interval(0.75, None, None, 3)
    assert macro_mean([[1.0], []], rng()) is None and macro_mean([], rng()) is None


def test_p_values_by_hand() -> None:
    assert mcnemar(5, 0) == pytest.approx(2 / 32) and mcnemar(3, 1) == pytest.approx(2 * 5 / 16)
    assert mcnemar(2, 2) == 1.0 and mcnemar(0, 0) == 1.0
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_a_ratio_has_an_interval_only_where_its_upper_end_has_a_whole() -> None:
    assert bootstrap_ratio([1.0], [2.0], rng()) == Interval(0.5, None, None, 1)
    assert bootstrap_ratio([0.0, 0.0], [0.0, 0.0], rng()) is None
    assert bootstrap_ratio([1.0] * 20, [1.0] + [0.0] * 19, rng()) == Interval(20.0, None, None, 20)
    found = bootstrap_ratio([1.0, 0.0], [0.5, 0.5], rng())
    assert found == Interval(1.0, 0.0, 2.0, 2)  # a small whole is a whole


@pytest.mark.parametrize("levels", [2, 9])
def test_the_memory_that_resampling_may_take_changes_no_number(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [float(number % levels) for number in range(20)]
    mean, ratio = bootstrap_mean(values, rng(), 99), bootstrap_ratio(values, [1.0] * 20, rng(), 99)
    drawn = np.array(values)[rng().integers(20, size=(99, 20))].mean(axis=1)
    assert ratio is not None and (ratio.low, ratio.high) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])))
    monkeypatch.setattr(intervals, "_CHUNK", 40)  # two resamples at a time, or 20
    assert bootstrap_mean(values, rng(), 99) == mean and bootstrap_ratio(values, [1.0] * 20, rng(), 99) == ratio


def test_metrics_are_read_once_each_within_the_depth_of_the_search() -> None:
    assert [metric.name for metric in metrics_within(10, ["recall@10", "mrr", "recall@10"])] == ["recall@10", "mrr"]
    for depth, names, says in (
        (9, ["recall@10"], "reads 10 passages, and --depth is 9"),
        (9, [], "no metric is named"),
    ):
        with pytest.raises(SettingError, match=says):
            metrics_within(depth, names)


def test_a_missing_answer_matches_no_gold_answer_however_odd() -> None:
    assert not cover_match(None, ["XXXX"]) and f1(None, ["XXXX"]) == 0.0
    assert f1("Ada", ["the"]) == 0.0 and f1("the", ["Ada"]) == 0.0


def test_a_misspelt_metric_is_corrected_with_its_own_cut() -> None:
    for wrong, right in (("recal@5", "recall@5"), ("recal", "recall@10"), ("ndgc@3", "ndcg@3")):
        with pytest.raises(UnknownName, match=f"did you mean '{right}'"):
            Metric.named(wrong)


def test_passages_named_without_a_grade_have_the_first() -> None:
    assert grades(("a", "b")) == {"a": 1, "b": 1} and grades({"a": 2, "b": 0, "c": -1}) == {"a": 2}
