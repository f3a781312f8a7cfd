import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.data.grade_cache import Verdict
from coseek.measure.agreement import Agreement, agreement, agreement_table, agreements
from coseek.measure.intervals import Interval, bootstrap_mean
from coseek.measure.score import Verdicts
from coseek.measure.table import Table


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


# --- the table and the JSON


"""2 yes-yes, 1 yes-no, 1 no-no, 2 no-yes, 2 unread: equal are 3 of 6; κ = (3·6 − (3·4 + 3·2)) / (36 − 18) = 0."""


def test_two_judges_are_one_row_with_every_count_in_its_column() -> None:
    judged = Agreement(20, 15, 5, 10, 3, Interval(0.7, 0.58, 0.82, 50))
    assert agreement_table({("a", "b"): judged}) == Table(
        ("judges", "responses", "agree", "Cohen's κ", "only the first says yes", "only the second", "unreadable"),
        (("a · b", "50", "0.700 [0.580, 0.820]", "0.400", "5", "10", "3"),),
    )


def test_the_interval_of_an_agreement_is_drawn_with_the_given_seed() -> None:
    # 20,000 responses: enough that two seeds give two intervals.
    judges = {"a": verdicts(*[True] * 20_000), "b": verdicts(*[True, False] * 10_000)}

    def share(seed: int) -> Interval | None:
        return bootstrap_mean([1.0, 0.0] * 10_000, np.random.default_rng(seed))

    assert len({repr(share(seed)) for seed in (0, 1, 5)}) == 3
    assert agreement(judges["a"], judges["b"]).share == share(0)
    assert agreements(judges)["a", "b"].share == share(0)
    assert agreements(judges, seed=5)["a", "b"].share == share(5)
