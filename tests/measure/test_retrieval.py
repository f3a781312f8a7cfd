from dataclasses import replace

from hypothesis import given, strategies as st
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, run, search_of

from coseek.data.passage import Passage
from coseek.data.trajectory import Search, Trajectory, evidence_of, rank_evidence
from coseek.graders.generator import ContextBudget
from coseek.measure import retrieval
from coseek.measure.score import score_trajectory


def test_recall_is_told_apart_by_search_and_by_run() -> None:
    trajectory = run(search_of("orbo", ORBO, OTHER), search_of("zun", OTHER), search_of("mira", MIRA))
    assert retrieval.search_recalls(trajectory) == [0.5, 0, 0.5]
    assert retrieval.run_recall(trajectory) == 1


def test_a_budget_counts_only_the_first_distinct_passages() -> None:
    trajectory = run(search_of("orbo", OTHER, ORBO), search_of("again", OTHER, MIRA))
    assert [retrieval.run_recall(trajectory, most) for most in (1, 2, 3)] == [0, 0.5, 1]


def test_recall_in_a_budget_does_not_grow_with_what_is_retrieved_after_it() -> None:
    one_search = run(search_of("orbo", ORBO, OTHER))
    more = run(search_of("orbo", ORBO, OTHER), search_of("again", OTHER, ORBO), search_of("mira", MIRA))
    tokens = ContextBudget(0).count(f"{ORBO.title} {ORBO.text} {OTHER.title} {OTHER.text}")
    enough, ample = ContextBudget(tokens).fill, ContextBudget(10 * tokens).fill
    assert [retrieval.run_recall(episode) for episode in (one_search, more)] == [0.5, 1]
    assert [retrieval.budgeted_recall(episode, enough) for episode in (one_search, more)] == [0.5, 0.5]
    assert [retrieval.budgeted_recall(episode, ample) for episode in (one_search, more)] == [0.5, 1]
    ranked_first = replace(more, evidence=("mira", "orbo", "other"))
    assert score_trajectory(ranked_first, budget=enough)["budgeted_recall"] == 1
    assert retrieval.budgeted_recall(more, ContextBudget(0).fill) == 0
    assert retrieval.budgeted_recall(replace(more, question=replace(QUESTION, gold_ids=())), ample) is None


def test_a_failed_search_found_nothing_and_is_in_no_mean() -> None:
    trajectory = run(search_of("orbo", ORBO), Search("mira", fault="away"))
    assert retrieval.search_recalls(trajectory) == [0.5]


def test_passages_count_once_in_the_order_of_first_sight() -> None:
    trajectory = run(search_of("x", OTHER, ORBO), search_of("y", ORBO, MIRA))
    assert [passage.id for passage in retrieval.served(trajectory)] == ["other", "orbo", "mira"]


def test_writing_the_gold_answer_is_no_hit() -> None:
    assert not retrieval.answer_hit(run(search_of("Velora Velora", ORBO, OTHER), answer="Velora"))
    assert retrieval.answer_hit(run(search_of("mira", MIRA), answer="no idea"))


def test_an_order_that_is_stored_is_the_one_that_is_scored() -> None:
    trajectory = run(search_of("x", OTHER, ORBO), search_of("y", MIRA), selected_ids=("orbo",))
    stored = replace(trajectory, evidence=("mira", "orbo", "other"))
    assert [retrieval.all_gold_at(episode, 2) for episode in (trajectory, stored)] == [False, True]
    assert [retrieval.recall_at(episode, 1) for episode in (trajectory, stored)] == [0.5, 0.5]
    assert retrieval.recall_at(replace(stored, evidence=("other", "mira", "orbo")), 1) == 0
    scores = score_trajectory(stored)
    assert (scores["recall@5"], scores["recall@10"], scores["all_gold@5"], scores["all_gold@10"]) == (1, 1, 1, 1)


def test_a_run_of_an_older_version_is_scored_by_the_rule_and_comes_back_as_it_was() -> None:
    old = run(search_of("x", OTHER, ORBO), search_of("y", MIRA), selected_ids=("mira",)).to_json()
    assert "evidence" not in old
    read = Trajectory.from_json(old)
    assert evidence_of(read) == ("mira", "other", "orbo") and read.to_json() == old
    new = replace(read, evidence=("mira", "orbo", "other"))
    assert Trajectory.from_json(new.to_json()) == new and new.to_json()["evidence"] == ["mira", "orbo", "other"]


idents = st.sampled_from("abcdef")


@given(st.lists(st.lists(idents, max_size=4), max_size=4), st.lists(idents, max_size=8))
def test_the_evidence_holds_everything_that_was_retrieved_once(lists: list[list[str]], first: list[str]) -> None:
    searches = [search_of("x", *(Passage(ident, "", "x") for ident in ids)) for ids in lists]
    order = rank_evidence(searches, first)
    assert sorted(order) == sorted({ident for ids in lists for ident in ids})
    chosen = list(dict.fromkeys(ident for ident in first if ident in order))
    assert list(order[: len(chosen)]) == chosen
