"""Fears about spelling: that a policy reads other text than it learnt, that text of others is respelled, and that a
world's own question changes on its way."""

import pytest

from coseek.core.text import as_written, separated
from coseek.lab.world.world import WorldSettings, make_world

LEARNT = "Who heads Ulmstad Seminary ?"


def is_token(word: str) -> bool:
    return word in ("Ulmstad", "Seminary") or word not in ("ulmstad", "seminary")


@pytest.mark.parametrize(
    "typed",
    [
        "Who heads Ulmstad Seminary?",
        "who heads Ulmstad Seminary",
        "  Who  heads\tUlmstad Seminary ??  ",
        "who heads ulmstad seminary",
        "WHO HEADS ULMSTAD SEMINARY?",
        "Who heads “Ulmstad Seminary”?!",
        "Who heads 'Ulmstad Seminary' ?",
        "Who heads\u00a0Ulm\u00adstad\u200b Seminary？",
        f" {LEARNT}",
    ],
)
def test_what_people_type_is_spelled_as_it_was_learnt(typed: str) -> None:
    assert separated(typed, is_token) == LEARNT


def test_marks_inside_a_question_stand_apart_and_those_inside_words_do_not() -> None:
    typed = "Which was first, Golden Gate (film) or Anne-Marie’s 3.5?"
    assert separated(typed, is_token) == "Which was first , Golden Gate ( film ) or Anne-Marie 's 3.5 ?"
    assert separated("name the mayor of Julenta", is_token) == "Name the mayor of Julenta ."
    assert [separated(text, is_token) for text in ("", " ", "?")] == ["", "", "?"]


@pytest.mark.parametrize("lexicon", ["laptop", "drawn", "held-out"])
def test_a_question_of_a_world_stays_byte_for_byte_and_comes_back_from_what_people_write(lexicon: str) -> None:
    world = make_world(WorldSettings(seed=7, lexicon=lexicon, size="compact"))  # type: ignore[arg-type]
    texts = [question.question for asked in world.questions.values() for question in asked]
    assert [f" {separated(text, lambda _: False)}" for text in texts] == texts
    assert [f" {separated(as_written(text), lambda _: False)}" for text in texts] == texts
    assert not any(f" {mark}" in as_written(text) for text in texts for mark in "?,.):")


@pytest.mark.parametrize("text", ["Qui a écrit cela ?", "a , b is C, too.", "x(1) . y", "  indented: code", "# Title"])
def test_text_that_no_world_wrote_is_shown_as_it_is(text: str) -> None:
    assert as_written(text) == text


def test_text_of_a_world_is_shown_as_people_write() -> None:
    passage = " Amber Island ( company ) is , also called X , led by Elor Lindby ."
    assert as_written(passage) == "Amber Island (company) is, also called X, led by Elor Lindby."
    turn = "<think> Amber Island # 1 , chief Elor Lindby . Now : who ?</think><search> Elor Lindby</search>"
    assert as_written(turn).startswith("<think> Amber Island #1, chief Elor Lindby. Now: who?</think>")
    assert as_written("<think> Next : X .</think>") == "<think> Next: X.</think>"
    assert as_written("<think> Next : the publisher</think><search> X</search>").startswith("<think> Next: the")
