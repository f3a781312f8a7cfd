"""Fears about labels: a skipped continuation would have changed one; a wrong answer counts as right."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.agents.playing import CORPUS, EVE, Shelf, play, typist
from tests.labels.small import continued, parts, turns

from coseek.agents.drivers import Agent
from coseek.agents.protocol import load_protocol
from coseek.agents.search_turns import search_turns
from coseek.labels.answer_correctness import LEAST, MOST_TIED, Correctness, PositiveChoice, Ties, decide_positives
from coseek.labels.label_folder import Score

SCORES = st.sampled_from([0.0, 40.0, 59.0, 60.0, 80.0, 100.0])  # few values, so that ties are common
TURN = st.lists(st.tuples(SCORES, st.sampled_from([False, False, True, None])), max_size=8)
"""Candidates of a turn: LR and GAC, `None` for a fault."""


def by_the_book(turn: Sequence[tuple[float, bool]], ties: Ties) -> tuple[int, ...]:
    """The positives by SPEC §6 and the table at the end of TRAPS, from all scores of a turn."""
    order = sorted(range(len(turn)), key=lambda index: (-turn[index][1], -turn[index][0]))
    if not order or not turn[order[0]][1] or turn[order[0]][0] < LEAST:
        return ()
    tied = [index for index in range(len(turn)) if turn[index] == turn[order[0]]]
    return (order[0],) if ties == "paper" else tuple(tied[:MOST_TIED])


def decided(
    turns: Sequence[Sequence[tuple[float, bool | None]]], ties: Ties, exhaustive: bool = False
) -> tuple[dict[int, tuple[int, ...] | None], list[tuple[int, int]]]:
    """The positives of each turn, and (turn, candidate) of all continuations, in order."""
    outcomes: dict[int, tuple[int, ...] | None] = {}
    tried: list[tuple[int, int]] = []
    for number, turn in enumerate(turns):
        choice = PositiveChoice([relevance for relevance, _ in turn], ties, exhaustive=exhaustive)
        while places := choice.wanted():
            for index in places:
                tried.append((number, index))
                choice.learn(index, turn[index][1])
        outcomes[number] = choice.positives
    assert len(set(tried)) == len(tried)
    return outcomes, tried


@given(st.lists(TURN, max_size=5), st.sampled_from(["paper", "code"]))
def test_the_fewest_continuations_give_the_labels_of_all_and_a_fault_leaves_only_turns_that_depend_on_it_open(
    turns: list[list[tuple[float, bool | None]]], ties: Ties
) -> None:
    lazy, tried = decided(turns, ties)
    assert lazy == decided(turns, ties, exhaustive=True)[0]
    assert all(turns[turn][index][0] >= LEAST for turn, index in tried)
    for number, turn in enumerate(turns):
        # Both values of an unknown GAC must give the same positives.
        filled = {
            by_the_book([(relevance, guess if correct is None else correct) for relevance, correct in turn], ties)
            for guess in (False, True)
        }
        if lazy[number] is not None:
            assert filled == {lazy[number]}
        if all(gac is not None for _, gac in turn):
            assert lazy[number] is not None


@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=8), st.sampled_from(["paper", "code"]))
def test_no_continuation_that_is_asked_for_could_be_spared(turn: list[tuple[float, bool]], ties: Ties) -> None:
    relevance = [lr for lr, _ in turn]
    known: dict[int, bool] = {}
    while (needed := decide_positives(relevance, known, ties=ties)[1]) is not None:
        ends = set()
        for guess in (False, True):
            rest = dict.fromkeys(range(len(turn)), False) | known | {needed: guess}
            ends.add(by_the_book([(lr, rest[index]) for index, lr in enumerate(relevance)], ties))
        assert len(ends) == 2
        known[needed] = turn[needed][1]


def test_equal_candidates_keep_the_retrievers_order_and_at_most_three_of_them_are_positives() -> None:
    relevance = [60.0, 100.0, 100.0, 100.0, 100.0, 100.0]
    correct = {0: True, 1: False, 2: True, 3: True, 4: True, 5: True}
    assert decide_positives(relevance, correct) == ((2,), None)
    assert decide_positives(relevance, correct, ties="code") == ((2, 3, 4), None)
    assert decide_positives(relevance, {1: False, 2: True}) == ((2,), None)
    assert decide_positives([59.9, 100.0], {0: True, 1: False}) == ((), None)
    assert decide_positives([], {}) == ((), None)


def test_without_relevance_every_candidate_is_asked_in_turn_and_without_the_agent_none() -> None:
    turns = [[(LEAST, False), (LEAST, True), (LEAST, True)]]
    assert decided(turns, "paper") == ({0: (1,)}, [(0, 0), (0, 1)])
    assert decide_positives([10.0, 90.0, 70.0], dict.fromkeys(range(3), True)) == ((1,), None)


def test_every_candidate_is_tried_at_once_where_all_are_and_the_bound_is_the_one_that_was_set() -> None:
    every = PositiveChoice([80.0, 30.0], exhaustive=True)
    assert (every.wanted(), every.wanted()) == ((0, 1), ())
    low = PositiveChoice([50.0], least=40.0)
    assert low.wanted() == (0,)
    low.learn(0, True)
    assert low.positives == (0,)


# --- the agent's answer from a passage


ADA = "<plan>a</plan><search><query>Ada</query></search>"
ADA_AND_A_FAULT = "<plan>a</plan><search><query>Ada</query><query>a bad one</query></search>"
WRONG = "<reflection>b</reflection><answer>never</answer>"


def score(folder: Path, *turns: str, then: tuple[str, ...]) -> Score:
    """The score of Eve's passage as the result of a run's first search; `then` is what the agent writes next."""
    protocol = load_protocol("qagent", "default")
    turn = next(search_turns(play("qagent", *turns), protocol))
    made_of = parts(folder, retriever=Shelf(CORPUS), who=Agent(protocol, typist(protocol, *then)))
    return continued(made_of, turn, EVE)


@pytest.mark.parametrize("lost", [ADA_AND_A_FAULT, ADA_AND_A_FAULT.replace("Ada", "worse than bad")])
def test_a_query_that_fails_after_the_passage_is_a_fault_and_no_zero(lost: str, tmp_path: Path) -> None:
    scored = score(tmp_path, ADA, WRONG, then=(lost, WRONG))
    assert scored.value is None and scored.fault == "the disk is gone"


def test_what_had_failed_before_the_passage_is_the_past_of_the_run(tmp_path: Path) -> None:
    scored = score(tmp_path, ADA_AND_A_FAULT, WRONG, then=(WRONG,))
    assert scored.value == 0.0 and scored.fault is None


def test_a_score_is_of_one_run_one_search_one_text_and_the_parts_that_made_it(tmp_path: Path) -> None:
    made = Correctness.of(parts(tmp_path))
    turn = next(turn for turn in turns() if turn.search == 1)
    other = next(each for each in turns() if each.question.id != turn.question.id and each.search == 1)
    pairs = [(turn, EVE), (replace(turn, search=0), EVE), (other, EVE)]
    pairs += [(turn, replace(EVE, title="another")), (turn, replace(EVE, text="another"))]
    contexts = {made._context(*pair) for pair in pairs}
    assert len(contexts) == 5 and {len(context) for context in contexts} == {16}
    assert made.identity != Correctness.of(parts(tmp_path, retriever=Shelf(CORPUS))).identity
