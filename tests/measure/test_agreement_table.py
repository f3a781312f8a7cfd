"""The table and the JSON of two judges' agreement, cell by cell."""

import numpy as np
from tests.measure.test_agreement import verdicts

from coseek.measure.agreement import Agreement, agreement, agreement_table, agreements
from coseek.measure.intervals import Interval, bootstrap_mean
from coseek.measure.table import Table

FIRST = verdicts(True, True, True, False, False, None, False)
SECOND = verdicts(True, True, False, False, True, True, True, True)
"""2 yes-yes, 1 yes-no, 1 no-no, 2 no-yes, 2 unread: equal are 3 of 6; κ = (3·6 − (3·4 + 3·2)) / (36 − 18) = 0."""
EQUAL = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_two_judges_are_one_row_with_every_count_in_its_column() -> None:
    judged = Agreement(20, 15, 5, 10, 3, Interval(0.7, 0.58, 0.82, 50))
    assert agreement_table({("a", "b"): judged}) == Table(
        ("judges", "responses", "agree", "Cohen's κ", "only the first says yes", "only the second", "unreadable"),
        (("a · b", "50", "0.700 [0.580, 0.820]", "0.400", "5", "10", "3"),),
    )


def test_the_json_of_an_agreement_names_every_count() -> None:
    judged = Agreement(20, 15, 5, 10, 3, Interval(0.75, 0.5, 1.0, 50))
    tree = judged.to_json()
    assert tree.pop("kappa") == judged.kappa
    assert tree == {
        "judged": 50,
        "unread": 3,
        "share": {"mean": 0.75, "low": 0.5, "high": 1.0, "n": 50},
        "both_yes": 20,
        "both_no": 15,
        "only_first": 5,
        "only_second": 10,
    }
    assert Agreement(0, 0, 0, 0, 1, None).to_json()["share"] is None


def test_two_judges_are_compared_response_by_response() -> None:
    found = agreement(FIRST, SECOND)
    assert found == Agreement(2, 1, 1, 2, 2, bootstrap_mean(EQUAL, np.random.default_rng(0)))
    assert found.kappa == 0


def test_the_interval_of_an_agreement_is_drawn_with_the_given_seed() -> None:
    """Of so many responses that two seeds give two intervals."""
    judges = {"a": verdicts(*[True] * 20_000), "b": verdicts(*[True, False] * 10_000)}

    def share(seed: int) -> Interval | None:
        return bootstrap_mean([1.0, 0.0] * 10_000, np.random.default_rng(seed))

    assert len({repr(share(seed)) for seed in (0, 1, 5)}) == 3
    assert agreement(judges["a"], judges["b"]).share == share(0)
    assert agreements(judges)["a", "b"].share == share(0)
    assert agreements(judges, seed=5)["a", "b"].share == share(5)
