"""The mutation report: a mutant that no test reached is alive, and one that was not run is no success."""

import pytest
from bench.mutation import Mutant, Score, mutants_in, scores, whole

LISTING = """
    coseek.rewards.accuracy.x_is_right__mutmut_1: killed
    coseek.rewards.accuracy.x_is_right__mutmut_2: survived
    coseek.rewards.accuracy.x_is_right__mutmut_3: timeout
    coseek.rewards.accuracy.x_is_right__mutmut_4: not checked
    coseek.labels.makers.gold.xǁGoldǁmake__mutmut_1: no tests
    coseek.labels.makers.gold.xǁGoldǁmake__mutmut_2: caught by type check
    coseek.labels.makers.gold.xǁGoldǁmake__mutmut_3: skipped
"""


def test_what_no_test_reached_is_alive_and_what_was_not_run_is_not_counted() -> None:
    found = scores(mutants_in(LISTING))
    assert found == {"coseek.rewards.accuracy": Score(2, 3), "coseek.labels.makers.gold": Score(1, 2)}
    assert whole(found) == Score(3, 5) and whole(found).share == pytest.approx(0.6)


def test_a_mutant_is_named_by_module_and_function() -> None:
    assert mutants_in(LISTING)[4] == Mutant("coseek.labels.makers.gold", "xǁGoldǁmake__mutmut_1", "no tests")


def test_an_output_that_cannot_be_read_is_no_score() -> None:
    with pytest.raises(SystemExit, match="no line of a mutant"):
        mutants_in("    coseek.rewards.accuracy.x_is_right__mutmut_1\n")
