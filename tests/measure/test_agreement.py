import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.data.grade_cache import Verdict
from coseek.measure.agreement import agreement, agreement_table, agreements
from coseek.measure.score import Verdicts


def verdicts(*said: bool | None) -> Verdicts:
    return {("q", str(n)): Verdict("q", str(n), right) for n, right in enumerate(said)}


def test_cohens_kappa_worked_by_hand() -> None:
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: observed .7, expected .5·.6 + .5·.4 = .5.
    first = verdicts(*[True] * 25, *[False] * 25)
    second = verdicts(*[True] * 20, *[False] * 5, *[True] * 10, *[False] * 15)
    found = agreement(first, second)
    assert (found.both_yes, found.only_first, found.only_second, found.both_no) == (20, 5, 10, 15)
    assert found.share is not None and found.share.mean == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)


def test_unreadable_verdicts_are_in_no_share_and_are_counted() -> None:
    found = agreement(verdicts(True, None, False), verdicts(True, True, None, False))
    assert (found.judged, found.unread) == (1, 3)


def test_where_both_say_one_word_only_kappa_is_unknown() -> None:
    found = agreement(verdicts(True, True), verdicts(True, True))
    assert found.kappa is None and found.share is not None and found.share.mean == 1
    assert agreement({}, {}).kappa is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_kappa_is_symmetric_at_most_one_and_one_only_for_full_agreement(pairs: list[tuple[bool, bool]]) -> None:
    first, second = verdicts(*(one for one, _ in pairs)), verdicts(*(other for _, other in pairs))
    found, turned = agreement(first, second), agreement(second, first)
    assert found.kappa == turned.kappa
    if found.kappa is not None:
        assert -1 <= found.kappa <= 1
        assert (found.kappa == 1) == (first == second)


def test_every_pair_of_judges_is_a_line() -> None:
    found = agreements({"a": verdicts(True), "b": verdicts(False), "c": verdicts(True)})
    table = agreement_table(found)
    assert [row[0] for row in table.rows] == ["a · b", "a · c", "b · c"]
    assert table.rows[1][:4] == ("a · c", "1", "1.000", "–")
