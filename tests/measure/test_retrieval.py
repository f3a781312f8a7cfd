from dataclasses import replace

from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, found, run

from coseek.data.trajectory import Search
from coseek.measure import retrieval


def test_recall_is_told_apart_by_search_and_by_run() -> None:
    trajectory = run(found("orbo", ORBO, OTHER), found("zun", OTHER), found("mira", MIRA))
    assert retrieval.search_recalls(trajectory) == [0.5, 0, 0.5]
    assert retrieval.run_recall(trajectory) == 1


def test_a_budget_counts_only_the_first_distinct_passages() -> None:
    trajectory = run(found("orbo", OTHER, ORBO), found("again", OTHER, MIRA))
    assert [retrieval.run_recall(trajectory, most) for most in (1, 2, 3)] == [0, 0.5, 1]


def test_a_failed_search_found_nothing_and_is_in_no_mean() -> None:
    trajectory = run(found("orbo", ORBO), Search("mira", fault="away"))
    assert retrieval.search_recalls(trajectory) == [0.5]


def test_without_gold_passages_there_is_no_recall_instead_of_zero() -> None:
    trajectory = run(found("orbo", ORBO), question=replace(QUESTION, gold_ids=()))
    assert retrieval.run_recall(trajectory) is None
    assert retrieval.search_recalls(trajectory) == []
    assert retrieval.all_gold_at(trajectory, 5) is None


def test_passages_count_once_in_the_order_of_first_sight() -> None:
    trajectory = run(found("x", OTHER, ORBO), found("y", ORBO, MIRA))
    assert [passage.id for passage in retrieval.served(trajectory)] == ["other", "orbo", "mira"]


def test_selected_passages_rank_before_what_was_only_served() -> None:
    trajectory = run(found("x", OTHER, ORBO), found("y", MIRA), selected_ids=("mira", "orbo"))
    assert retrieval.ranking(trajectory) == ["mira", "orbo", "other"]
    assert retrieval.all_gold_at(trajectory, 2) is True
    assert retrieval.all_gold_at(replace(trajectory, selected_ids=()), 2) is False


def test_writing_the_gold_answer_is_no_hit() -> None:
    assert not retrieval.answer_hit(run(found("Velora Velora", ORBO, OTHER), answer="Velora"))
    assert retrieval.answer_hit(run(found("mira", MIRA), answer="no idea"))


def test_no_answer_is_put_together_from_two_passages() -> None:
    question = replace(QUESTION, answers=("company founded by Mira Tan Mira Tan is a person",))
    assert not retrieval.answer_hit(run(found("x", ORBO, MIRA), question=question))
