"""Fears about sliding windows: an item that no window ever holds, an item that is lost."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.retrieval.llm import sliding_together, spans


def perfect(items: list[int]) -> list[int]:
    return sorted(range(len(items)), key=items.__getitem__)


def shapes() -> st.SearchStrategy[tuple[int, int]]:
    return st.integers(2, 12).flatmap(lambda window: st.tuples(st.just(window), st.integers(1, window - 1)))


def test_the_windows_go_from_the_back_to_the_very_front() -> None:
    assert spans(45, 20, 10) == [(25, 45), (15, 35), (5, 25), (0, 20)]
    assert spans(20, 20, 10) == [(0, 20)]
    assert spans(7, 20, 10) == [(0, 7)]
    assert spans(1, 20, 10) == spans(0, 20, 10) == []


def test_a_step_that_leaves_gaps_is_refused() -> None:
    for step in (0, 4, 5):
        with pytest.raises(ValueError, match="a step lies between 1 and the window less one, 3"):
            spans(10, 4, step)


@given(st.integers(0, 60), shapes())
def test_every_item_is_in_a_window_and_neighbours_overlap(count: int, shape: tuple[int, int]) -> None:
    window, step = shape
    cuts = spans(count, window, step)
    assert {item for start, end in cuts for item in range(start, end)} == (set(range(count)) if count > 1 else set())
    assert all(end - start <= window for start, end in cuts)
    assert all(next_end - start >= window - step for (start, _), (_, next_end) in pairwise(cuts))


@given(st.permutations(range(30)), st.integers(0, 30), shapes())
def test_if_every_window_is_ranked_rightly_the_best_window_less_step_items_are_in_front(
    items: list[int], count: int, shape: tuple[int, int]
) -> None:
    window, step = shape
    found = sliding_together([items[:count]], lambda windows: [perfect(held) for _, held in windows], window, step)[0]
    best = sorted(items[:count])
    assert found[: window - step] == best[: window - step]
    assert sorted(found) == best


@given(st.lists(st.integers(0, 40), max_size=5), shapes(), st.integers(0, 10_000))
def test_whatever_the_ranker_says_nothing_is_lost_and_lists_do_not_touch_each_other(
    counts: list[int], shape: tuple[int, int], seed: int
) -> None:
    window, step = shape
    orders = [[(number, item) for item in range(count)] for number, count in enumerate(counts)]

    def drawn(number: int, items: list[tuple[int, int]]) -> list[int]:
        return random.Random(f"{seed} {items}").sample(range(len(items)), k=len(items))

    together = sliding_together(
        orders, lambda windows: [drawn(number, items) for number, items in windows], window, step
    )
    assert [sorted(found) for found in together] == orders
    for number, order in enumerate(orders):
        alone = sliding_together([order], lambda windows: [drawn(0, items) for _, items in windows], window, step)
        assert alone[0] == together[number]


def test_a_ranker_that_loses_an_item_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no permutation"):
        sliding_together([[1, 2, 3]], lambda windows: [[0, 0, 1]])
