"""Fears about what reasonings still hold: a share of the wrong whole, a dead end that counts as right, a turn lost."""

import pytest
from tests.agents.playing import play
from tests.agents.test_tools import tool

from coseek.agents.protocol import load_protocol
from coseek.data.question import plan_of
from coseek.lab.world.rationales import kind_of
from coseek.lab.world.world import WorldSettings, make_world
from coseek.measure.reasoning import ReasoningClaims, reasoning_values, reasonings_of


def turn(*clues: int, correct: int = 0, incorrect: int = 0) -> ReasoningClaims:
    return ReasoningClaims(frozenset(clues), correct, incorrect)


def test_coverage_and_claims_by_the_latest_turns_worked_by_hand() -> None:
    first = [turn(0, 1, correct=1, incorrect=2), turn(2, incorrect=1), turn(0, 2, correct=2)]
    second = [turn(), turn(5, correct=1)]  # its first turn names no clue and counts for claims alone
    one, two, whole = (reasoning_values({"a": [first, second], "b": [[]]}, latest) for latest in (1, 2, None))
    assert one.keys() == {"a"}
    assert one["a"] == pytest.approx({
        "coverage": ((1 + 1 / 3 + 2 / 3) / 3 + 1) / 2,
        "correct": (3 / 3 + 1 / 2) / 2,
        "incorrect": (3 / 3) / 2,
        "noise": (3 / 3 - 3 / 3 - 1 / 2) / 2,
    })  # fmt: skip
    assert two["a"]["coverage"] == pytest.approx(((1 + 1 + 2 / 3) / 3 + 1) / 2)
    assert whole["a"]["coverage"] == 1
    assert whole["a"]["correct"] == pytest.approx(((1 + 1 + 3) / 3 + 1 / 2) / 2)
    assert whole["a"]["incorrect"] == pytest.approx(((2 + 3 + 3) / 3) / 2)
    assert reasoning_values({"b": [[turn()]]}, None) == {"b": {"correct": 0, "incorrect": 0, "noise": 0}}


def test_the_world_knows_clues_right_claims_and_dead_ends() -> None:
    world = make_world(WorldSettings(size="tiny", seed=5, train=30, dev=1, test=1))
    question = next(
        question for question in world.questions["train"] if kind_of(question) == "composition" and question.hops == 2
    )
    middle, last = (step.sub_answer.strip() for step in plan_of(question))
    assert not {*middle.split(), *last.split()} & {*question.question.split()} and middle != last
    others = [entity for entity in world.oracle.facts.values() if not {middle, last} & {*entity.names}]
    apart = [
        entity.name
        for entity in others
        if not {*entity.name.split()} & {*f"{question.question} {middle} {last}".split()}
    ]
    wrong, other = apart[0], next(name for name in apart[1:] if not {*name.split()} & {*apart[0].split()})
    given = plan_of(question)[0].mention
    assert world.oracle.claims(
        question,
        ["", f"I look for {given} .", f"it is {middle} , I think .", f"{wrong} or {other} ? no , {wrong} .",
         f"so {middle.upper()} leads to {last} , not to {wrong}"],
    ) == [turn(), turn(), turn(0, correct=1), turn(incorrect=2), turn(0, 1, correct=2, incorrect=1)]  # fmt: skip


def test_each_turn_that_searched_has_one_reasoning() -> None:
    both = '<think>two at once</think><tool_call>{"name": "search", "arguments": {"query": ["Ada", "Bob"]}}</tool_call>'
    run = play("react", tool("search", query="Eve"), tool("visit", id="p3"), both, "<think>b</think><answer>1</answer>")
    assert len(run.searches) == 3 and reasonings_of(run, load_protocol("react")) == ["a", "two at once"]
