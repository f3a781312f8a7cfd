"""Fears about replies: that a person reads a loop or nothing, and that sources are passages that nobody used."""

import pytest
from tests.agents.playing import WIDE, Shelf, play

from coseek.agents.limits import Limits
from coseek.agents.sources import OUTSIDE, reply_in_words, sources_of, used_sentences
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason

LOOP = "<think> painter Seminary" + " painter Seminary" * 40
SEARCH = "<think>a</think><search>Ada</search>"


def test_a_turn_that_goes_round_in_circles_is_answered_with_a_sentence() -> None:
    looped, answered = play("search-r1", LOOP), play("search-r1", f"<think>a</think><answer>{'no way ' * 30}</answer>")
    assert {reply_in_words(looped), reply_in_words(answered)} == {OUTSIDE}
    assert looped.segments[-1].text.count("painter") == 41  # the record is whole


@pytest.mark.parametrize(
    ("turns", "limits", "stop"),
    [
        ((SEARCH, SEARCH), WIDE.model_copy(update={"max_turns": 1}), StopReason.TURN_LIMIT),
        (("hm " * 3,), WIDE, StopReason.INVALID),
        ((SEARCH,), WIDE.model_copy(update={"max_tokens": 400}), StopReason.TOKEN_LIMIT),
    ],
)
def test_every_end_without_an_answer_has_a_sentence(turns: tuple[str, ...], limits: Limits, stop: StopReason) -> None:
    run = play("search-r1", *turns, limits=limits)
    assert run.stop is stop
    said = reply_in_words(run)
    assert said.startswith("I have no answer: ") and "_" not in said


def test_an_answer_is_shown_as_people_write_it() -> None:
    run = play("search-r1", "<think>a</think><answer> Golden Gate ( film ) </answer>")
    assert (run.answer, reply_in_words(run)) == ("Golden Gate ( film )", "Golden Gate (film)")


def test_sources_are_what_was_used_and_each_has_its_sentence() -> None:
    mayor = Passage("c", "Julenta", "Julenta is old. Its mayor is Daro Lind. It rains.")
    person = Passage("p", "Daro Lind", "Daro Lind was born in Orlen. He sings.")
    others = [Passage(f"o{number}", f"Other {number}", "Nothing of it.") for number in range(7)]
    shelf = Shelf(Corpus([mayor, person, *others]), {"Ada": ["c", "p", *(one.id for one in others)]})
    wide = WIDE.model_copy(update={"passages_per_search": 9, "max_observation_tokens": 20000})
    right = play("search-r1", SEARCH, "<think>b</think><answer>Orlen</answer>", retriever=shelf, limits=wide)
    assert sources_of(right) == [person]
    assert used_sentences(right, [person, mayor, others[0]]) == [
        "Daro Lind was born in Orlen.", "Its mayor is Daro Lind.", "",
    ]  # fmt: skip
    wrong = play("search-r1", SEARCH, "<think>b</think><answer>Rome</answer>", retriever=shelf, limits=wide)
    assert len(sources_of(wrong)) == 5
