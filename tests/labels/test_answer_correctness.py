"""Fears about the agent's answer from a passage: a part that failed on the way, taken for a passage that misleads."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agents.playing import CORPUS, EVE, Shelf, play, typist
from tests.labels.small import continued, parts, turns

from coseek.agents.drivers import Agent
from coseek.agents.protocol import load_protocol
from coseek.agents.search_turns import search_turns
from coseek.labels.answer_correctness import Correctness
from coseek.labels.label_folder import Score

ADA = "<plan>a</plan><search><query>Ada</query></search>"
ADA_AND_A_FAULT = "<plan>a</plan><search><query>Ada</query><query>a bad one</query></search>"
WRONG = "<reflection>b</reflection><answer>never</answer>"


def score(folder: Path, *turns: str, then: tuple[str, ...]) -> Score:
    """Of Eve's passage in the place of what the first search of a run found; `then` is what the agent writes."""
    protocol = load_protocol("qagent", "default")
    turn = next(search_turns(play("qagent", *turns), protocol))
    made_of = parts(folder, retriever=Shelf(CORPUS), who=Agent(protocol, typist(protocol, *then)))
    return continued(made_of, turn, EVE)


@pytest.mark.parametrize("lost", [ADA_AND_A_FAULT, ADA_AND_A_FAULT.replace("Ada", "worse than bad")])
def test_a_query_that_fails_after_the_passage_is_a_fault_and_no_zero(lost: str, tmp_path: Path) -> None:
    said = score(tmp_path, ADA, WRONG, then=(lost, WRONG))
    assert said.value is None and said.fault == "the disk is gone"


def test_what_had_failed_before_the_passage_is_the_past_of_the_run(tmp_path: Path) -> None:
    said = score(tmp_path, ADA_AND_A_FAULT, WRONG, then=(WRONG,))
    assert said.value == 0.0 and said.fault is None


def test_a_score_is_of_one_run_one_search_one_text_and_the_parts_that_made_it(tmp_path: Path) -> None:
    made = Correctness.of(parts(tmp_path))
    turn = next(one for one in turns() if one.search == 1)
    other = next(one for one in turns() if one.question.id != turn.question.id and one.search == 1)
    asked = [(turn, EVE), (replace(turn, search=0), EVE), (other, EVE)]
    asked += [(turn, replace(EVE, title="another")), (turn, replace(EVE, text="another"))]
    contexts = {made._context(*one) for one in asked}
    assert len(contexts) == 5 and {len(context) for context in contexts} == {16}
    assert made.identity != Correctness.of(parts(tmp_path, retriever=Shelf(CORPUS))).identity
