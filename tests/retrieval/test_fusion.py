from hypothesis import given, settings
from hypothesis import strategies as st

from coseek.retrieval.fusion import reciprocal_rank_fusion

LISTS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=6, unique=True), max_size=4)


def test_what_two_lists_agree_on_comes_before_what_one_puts_first() -> None:
    assert list(reciprocal_rank_fusion([["a", "x"], ["b", "x"]])) == ["x", "a", "b"]


def test_a_first_place_is_worth_one() -> None:
    assert reciprocal_rank_fusion([["a", "b"]]) == {"a": 1.0, "b": 61 / 62}


def test_no_lists_rank_nothing() -> None:
    assert reciprocal_rank_fusion([]) == {}


@settings(max_examples=100)
@given(LISTS)
def test_everything_found_is_ranked_once_and_one_list_keeps_its_order(lists: list[list[str]]) -> None:
    assert set(reciprocal_rank_fusion(lists)) == {ident for ranked in lists for ident in ranked}
    for ranked in lists[:1]:
        assert list(reciprocal_rank_fusion([ranked])) == ranked
