"""Rankings: the best rows, and what becomes of several lists."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.retrieval.ranking import Scale, reciprocal_rank_fusion, scaled, top_rows, weighted_fusion

LISTS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=6, unique=True), max_size=4)


def test_what_two_lists_agree_on_comes_before_what_one_puts_first() -> None:
    assert list(reciprocal_rank_fusion([["a", "x"], ["b", "x"]])) == ["x", "a", "b"]


def test_a_first_place_is_worth_one() -> None:
    assert reciprocal_rank_fusion([["a", "b"]]) == {"a": 1.0, "b": 61 / 62}


@given(LISTS)
def test_everything_found_is_ranked_once_and_one_list_keeps_its_order(lists: list[list[str]]) -> None:
    assert set(reciprocal_rank_fusion(lists)) == {ident for ranked in lists for ident in ranked}
    for ranked in lists[:1]:
        assert list(reciprocal_rank_fusion([ranked])) == ranked


SCORES = st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=8)


@given(SCORES, st.sampled_from(["min-max", "z"]))
def test_scaled_scores_begin_at_0_and_never_swap_two(scores: list[float], scale: Scale) -> None:
    values = scaled(scores, scale)
    assert min(values) == (0.0 if max(scores) / 2 > min(scores) / 2 else 1.0)
    order = sorted(range(len(scores)), key=scores.__getitem__)
    assert all(values[low] <= values[high] for low, high in pairwise(order))


def test_min_max_puts_the_best_at_1_and_z_measures_in_standard_deviations() -> None:
    assert scaled([1.0, 3.0, 2.0], "min-max") == [0.0, 1.0, 0.5]
    z = scaled([1.0, 3.0, 2.0], "z")
    assert [round(value, 6) for value in z] == [0.0, 2.44949, 1.224745]  # 2 and 1 over √⅔


def test_one_hit_and_equal_scores_count_as_found() -> None:
    assert scaled([7.0], "min-max") == scaled([7.0], "z") == [1.0]
    assert scaled([5e-324, 5e-324], "z") == [1.0, 1.0]
    assert scaled([], "z") == []


def test_a_short_ranking_counts_as_one_over_all_places() -> None:
    (alone,) = scaled([14.0], "z", max_hits=100, absent=0.0)
    assert round(alone, 3) == 10.05  # 14 over 14 · √(.01 · .99)
    assert scaled([3.0, 1.0], "min-max", max_hits=4, absent=0.0) == [1.0, 1 / 3]
    assert scaled([3.0, 1.0], "z", max_hits=4) == scaled([3.0, 1.0], "z")  # its other scores are not known
    assert scaled([3.0, 1.0], "z", max_hits=2, absent=0.0) == scaled([3.0, 1.0], "z")


def test_tiny_differences_are_still_differences() -> None:
    assert scaled([1e-300, 2e-300], "z") == [0.0, 2.0]


def test_weighted_fusion_adds_what_each_list_says_and_nothing_for_what_it_does_not_hold() -> None:
    lists = [{"a": 10.0, "b": 5.0, "c": 0.0}, {"b": 0.9, "d": 0.1}]
    assert weighted_fusion(lists, [1.0, 2.0], "min-max") == {"b": 2.5, "a": 1.0, "c": 0.0, "d": 0.0}


# --- the best rows


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 40))
def test_the_best_rows_come_first_and_equal_scores_keep_row_order(scores: list[int], k: int) -> None:
    array = np.array(scores, dtype=np.float32)
    expected = sorted(range(len(scores)), key=lambda row: -scores[row])
    assert top_rows(array, k).tolist() == expected[:k]
    assert top_rows(array, k, above=0.0).tolist() == [row for row in expected if scores[row] > 0][:k]


@pytest.mark.parametrize("k", [0, -1])
def test_a_search_for_no_passages_is_a_bug(k: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        top_rows(np.zeros(3, dtype=np.float32), k)
