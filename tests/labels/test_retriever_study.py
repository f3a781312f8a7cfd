"""The comparison of retrievers: what its tables say, and that it goes on where it was."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from bench.retriever_arms import BM25, HYBRID, METHODS, SETS, SMALL, ZERO_SHOT, Arm, Place
from bench.retrievers import (
    BASES,
    BESIDE_WHOLE,
    CHILD,
    COMPARISON,
    FACTORIAL,
    NAMES,
    PARENTS,
    WHOLES,
    Measured,
    beside_view,
    of_seed,
    over_seeds,
    searches_where_right,
    verdict,
)

from coseek.data.question import Question
from coseek.labels.label_folder import LabelFolder
from coseek.measure.score import QuestionScores, ScoredRun


def run(em: list[float], searches: float = 2.0, faults: int = 0) -> ScoredRun:
    """A question a number; the last `faults` more have no number."""
    rows = {
        f"q{place}": QuestionScores(
            Question(f"q{place}", "?", ("x",)), {"em": value, "searches": searches, "recall": 0.5}, 1, 0
        )
        for place, value in enumerate(em)
    }
    broken = {f"f{place}": QuestionScores(Question(f"f{place}", "?", ("x",)), {}, 0, 1) for place in range(faults)}
    return ScoredRun("run", {**rows, **broken}, {})


def measured(em: dict[Arm, list[list[float]]], faults: int = 0) -> Measured:
    """Arm → EM of each question, seed by seed; the same on both sets."""
    seeds = tuple(range(len(next(iter(em.values())))))
    runs = {
        (seed, name, arm): run(values[seed], faults=faults)
        for arm, values in em.items()
        for seed in seeds
        for name in SETS
    }
    return Measured(seeds, runs)


def test_every_line_of_the_tables_can_be_made_and_has_folders_of_its_own() -> None:
    arms = {*COMPARISON, *FACTORIAL}
    assert {arm.source for arm in arms} == {*METHODS, BM25, ZERO_SHOT}
    assert len(COMPARISON) == len(set(COMPARISON)) and len({arm.slug for arm in arms}) == len(arms)
    assert {*PARENTS, CHILD, *BASES} <= set(FACTORIAL) and set(BASES) <= set(COMPARISON)


def test_a_combination_that_beats_one_parent_alone_is_no_default() -> None:
    weak, strong = [[0.0, 1.0] * 50], [[1.0] * 100]
    assert "is no default" in verdict(measured({PARENTS[0]: weak, PARENTS[1]: strong, CHILD: strong}))
    assert "beats both parents" in verdict(measured({PARENTS[0]: weak, PARENTS[1]: weak, CHILD: strong}))


def test_one_lucky_seed_makes_no_default() -> None:
    """Pooled, the interval is far above zero; under the second seed the combination is worse."""
    parents = {parent: [[0.0] * 100, [1.0] * 100, [0.0] * 100] for parent in PARENTS}
    found = verdict(measured({**parents, CHILD: [[1.0] * 100, [0.9] * 100, [1.0] * 100]}))
    assert "is no default" in found and "least of a seed -0.100" in found


def test_a_method_without_a_part_stands_beside_the_whole() -> None:
    assert set(WHOLES) == {arm for arm, name in NAMES.items() if "without" in name}
    assert {*WHOLES, *WHOLES.values()} <= set(COMPARISON)
    part, whole = Arm("agentic-r without GAC", "question+query"), Arm("agentic-r", "question+query")
    em = {BASES[0]: [[0.0] * 10] * 2, BASES[1]: [[0.0] * 10] * 2, whole: [[1.0] * 10] * 2}
    both = measured({**em, part: [[1.0] * 10, [0.0] * 10]})
    arms = (*BASES, whole, part)
    table = over_seeds(both, arms, "test")
    beside = [row[table.columns.index(BESIDE_WHOLE)] for row in table.rows]
    assert beside[:3] == ["–", "–", "–"] and beside[3].startswith("-0.500 [") and beside[3].endswith("most +0.000")
    alone = of_seed(both, arms, "test", 1)
    assert alone.rows[3][alone.columns.index(BESIDE_WHOLE)] == "-1.000 [-1.000, -1.000]"


def test_questions_of_two_seeds_with_one_id_are_two_questions() -> None:
    both = measured({BASES[0]: [[0.0] * 10, [0.0] * 10], BASES[1]: [[1.0] * 10, [0.0] * 10]})
    found = both.above(BASES[1], BASES[0], "test", "em", (0, 1)).difference
    assert (found.n, found.mean) == (20, 0.5)
    table = over_seeds(both, BASES, "test")
    assert "least +0.000" in table.rows[1][3] and table.rows[1][2] == "0.500 ± 0.707"


def test_a_faulted_run_is_left_out_of_the_means_and_said_below() -> None:
    table = of_seed(measured({arm: [[1.0, 1.0]] for arm in BASES}, faults=3), BASES, "unseen", 0)
    assert [row[2] for row in table.rows] == ["1.000", "1.000"]
    assert table.notes == ("6 runs ended by a fault and are left out.",)
    assert not of_seed(measured({arm: [[1.0]] for arm in BASES}), BASES, "unseen", 0).notes


def test_a_difference_that_is_below_zero_says_so() -> None:
    table = of_seed(measured({BASES[0]: [[1.0] * 9], BASES[1]: [[0.0] * 9]}), BASES, "test", 0)
    assert table.rows[1][3] == "-1.000 [-1.000, -1.000]" and table.rows[0][4] == "+1.000 [1.000, 1.000]"


def test_searches_are_compared_where_both_answer_right() -> None:
    """The better one also answers questions of many searches, which the mean over all would hold against it."""
    arm, searches = Arm("dr-synth", "reasoning+query"), {"q0": 1.0, "q1": 1.0, "q4": 6.0, "q5": 6.0}
    both = measured(
        {base: [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]] for base in BASES} | {arm: [[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]]}
    )
    for name in SETS:
        for ident, row in both.runs[0, name, arm].questions.items():
            cast(dict[str, float], row.metrics)["searches"] = searches.get(ident, 2.0)
    table = searches_where_right(both, (*BASES, arm))
    assert table.rows[2][2:] == ("-1.000 [-1.000, -1.000] (n=2)",) * 4
    assert table.rows[0][2] == "–" and table.rows[0][3] == "+0.000 [0.000, 0.000] (n=3)"


def test_what_training_is_worth_is_not_what_the_view_is() -> None:
    view = "question+query"
    alone, trained, other = Arm(ZERO_SHOT, view), Arm("agentic-r", view), Arm("gold", "reasoning+query")
    em = {**{base: [[0.0] * 8] * 2 for base in BASES}, alone: [[0.5] * 8] * 2, trained: [[1.0] * 8] * 2}
    table = beside_view(measured({**em, other: [[1.0] * 8] * 2}), (*BASES, alone, trained, other))
    found = {row[:2]: row[2:] for row in table.rows}
    assert found["Agentic-R", view] == ("–", "+0.500 [0.500, 0.500]") * len(SETS)
    assert set(found[ZERO_SHOT, view]) == set(found["gold labels", other.view]) == {"–"}


@pytest.mark.slow
def test_a_stopped_comparison_goes_on_and_a_finished_one_makes_nothing(tmp_path: Path) -> None:
    arms = (Arm(BM25, "query"), Arm("agentic-r", "question+query"), Arm(HYBRID, "reasoning+query"))
    said: list[str] = []

    def place() -> Place:
        scale = replace(SMALL, questions=8, steps=2)
        return Place(0, tmp_path / "work", tmp_path / "agent", tmp_path / "none", scale, said.append)

    first = [place().scored(arm, "test") for arm in arms]
    assert all(len(one.questions) == 8 for one in first)
    assert sum("labels" in line for line in said) == 3  # agentic-r, and dr-synth under the combination
    said.clear()
    for made in ("encoders", "indexes"):  # runs alone are enough
        shutil.rmtree(tmp_path / "work" / made)
    assert [place().scored(arm, "test").questions for arm in arms] == [one.questions for one in first] and not said
    assert not (tmp_path / "work" / "indexes").exists()

    worth = place().worth("agentic-r")
    assert 0 < worth.right <= worth.sets <= worth.turns

    rows = list(LabelFolder(tmp_path / "work" / "labels" / HYBRID).sets())
    assert rows
    for row in rows:  # the first passage of the oracle's order from which the agent ends right
        right = [one for one in row.candidates if one.scores.get("gac") == 1 and one.scores["lr"] >= 60]
        assert row.positive == min(right, key=lambda one: one.rank).passage.id
