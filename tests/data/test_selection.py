import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from coseek.core.errors import DataError, SettingError
from coseek.core.settings import make_settings
from coseek.data.dataset import EVERY, QuestionFilter, draw
from coseek.data.question import Question


def make_questions(*sizes: int) -> list[Question]:
    """Questions of several data sets, one set after the other, as published files hold them."""
    return [
        Question(f"{name}/train_{number}", "?", hops=1 + number % 3, meta={"data_source": name, "type": f"type{index}"})
        for index, size in enumerate(sizes)
        for name in [f"set{index}"]
        for number in range(size)
    ]


SIZES = st.lists(st.integers(1, 150), min_size=1, max_size=8)
SEEDS = st.integers(0, 2**32)


@pytest.mark.slow
@given(SIZES, st.integers(0, 1500), SEEDS)
def test_a_draw_keeps_the_share_of_every_data_set_and_loses_none(sizes: list[int], count: int, seed: int) -> None:
    questions = make_questions(*sizes)
    drawn = draw(questions, count, seed)
    assert len(drawn) == min(count, len(questions))
    counts = Counter(question.dataset for question in drawn)
    for index, size in enumerate(sizes):
        here = counts[f"set{index}"]
        assert here >= 1 or count < len(sizes)
        # Every set may hold one question more than its share, and small sets take theirs from large ones.
        assert count == 0 or abs(here / len(drawn) - size / len(questions)) <= max(0.03, len(sizes) / len(drawn))


@pytest.mark.slow
@given(SIZES, st.integers(0, 600), st.integers(0, 600), SEEDS)
def test_a_draw_is_the_same_for_a_file_in_another_order_and_part_of_a_larger_draw(
    sizes: list[int], few: int, more: int, seed: int
) -> None:
    questions = make_questions(*sizes)
    shuffled = random.Random(seed).sample(questions, len(questions))
    drawn = {question.id for question in draw(questions, few, seed)}
    assert drawn == {question.id for question in draw(shuffled, few, seed)}
    assert drawn <= {question.id for question in draw(questions, few + more, seed)}


def test_a_draw_keeps_the_order_and_takes_all_where_there_are_no_more() -> None:
    questions = make_questions(5, 3)
    assert draw(questions, 8, 0) == draw(questions, 99, 1) == draw(questions, None, 2) == questions
    some = draw(questions, 4, 0)
    assert some == [question for question in questions if question in some]


def test_another_seed_draws_other_questions() -> None:
    draws = {tuple(question.id for question in draw(make_questions(200), 20, seed)) for seed in range(5)}
    assert len(draws) == 5


def test_the_first_rows_of_a_sorted_file_do_not_stand_for_it() -> None:
    drawn = Counter(question.dataset for question in draw(make_questions(7_917, 9_045), 200, 0))
    assert drawn == {"set0": 93, "set1": 107}


def test_questions_are_chosen_by_data_set_hops_and_type() -> None:
    questions = make_questions(6, 6)
    chosen = make_settings(QuestionFilter, {"sources": "set1", "hops": "2,3"}).apply(questions)
    assert {question.dataset for question in chosen} == {"set1"} and {question.hops for question in chosen} == {2, 3}
    assert make_settings(QuestionFilter, {"types": ["type0"]}).apply(questions) == questions[:6]
    assert EVERY.apply(questions) == questions


def test_questions_are_chosen_by_whether_the_corpus_answers_them() -> None:
    there, gone = Question("a", "?", ("x",)), Question("b", "?", meta={"unanswerable": True})
    unknown = Question("c", "?")  # nobody says that it has no answer
    rows = [there, gone, unknown]
    assert make_settings(QuestionFilter, {"answerable": True}).apply(rows) == [there, unknown]
    assert make_settings(QuestionFilter, {"answerable": False}).apply(rows) == [gone]
    assert EVERY.apply(rows) == rows


def test_a_misspelt_data_set_or_type_is_refused_and_not_an_empty_choice() -> None:
    with pytest.raises(SettingError, match="no question is of the data set 'set2'; did you mean 'set1'"):
        QuestionFilter(sources=("set2",)).apply(make_questions(2, 2))
    with pytest.raises(SettingError, match="They name no type"):
        QuestionFilter(types=("bridge",)).apply([Question("a", "?")])
    with pytest.raises(DataError, match="none of the 4 questions is left"):
        QuestionFilter(hops=(9,)).apply(make_questions(2, 2))
