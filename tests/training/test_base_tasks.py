"""Fears about base tasks: a target that does not follow from what is shown, and draws that cannot be repeated."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
from tests.scripted import Scripted, generator

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.data.question import Question, plan_of
from coseek.lab.training.base_tasks import (
    COPY_ALPHABETS,
    COPY_GAPS,
    COPY_LENGTHS,
    GIVEN,
    BaseTasks,
    BaseTaskSettings,
    Task,
)
from coseek.lab.training.examples import ExampleSampler
from coseek.lab.world.rationales import wanted
from coseek.models.tokenizer import ByteTokenizer

EXAMPLES = 60


def tasks() -> BaseTasks:
    reader = generator(Scripted(str), prompt="generator-laptop")
    return BaseTasks(BaseTaskSettings(), 0, ByteTokenizer(), ByteTokenizer().size, reader)


@cache
def sampler() -> ExampleSampler:
    return tasks().sampler(0)


class Ids(ByteTokenizer):
    """More ids than bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def question_of(shown: str) -> Question:
    """The question of the world that a prompt asks."""
    fitting = [question for question in sampler().questions if shown.startswith(f" Question :{question.question}")]
    return max(fitting, key=lambda question: len(question.question))


def gold_shown(question: Question, shown: str) -> list[bool]:
    return [sampler().corpus.by_id(step.gold_id).text.strip() in shown for step in plan_of(question)]


def examples(task: Task) -> list[tuple[Question, str, str]]:
    made = [tasks().example(task, sampler(), 1.0, random.Random(number)) for number in range(EXAMPLES)]
    return [(question_of(example.shown), example.shown, example.written) for example in made]


@pytest.mark.medium
def test_the_answer_follows_from_the_passages_that_are_shown() -> None:
    for question, shown, written in examples("read"):
        assert shown.endswith(" So :") and all(gold_shown(question, shown))
        assert written.rpartition(" Answer : ")[2] in {answer.strip() for answer in question.answers}


def test_the_prompt_of_training_is_the_prompt_of_answering() -> None:
    made = [tasks().example("read", sampler(), 1.0, random.Random(number)) for number in range(EXAMPLES)]
    for example in made:
        question = question_of(example.shown).question
        assert example.shown == tasks().generator.context(question, example.passages).prompt


def test_the_next_thing_to_look_up_is_the_first_that_is_not_shown() -> None:
    ends = set()
    for question, shown, written in examples("next"):
        there = gold_shown(question, shown)
        ends.add(all(there))
        if all(there):
            assert written.rpartition(" Answer : ")[2] in {answer.strip() for answer in question.answers}
        else:
            step = plan_of(question)[there.index(False)]
            assert written.endswith(f" Next : {wanted(question, step)} .")
            assert written.count(" # ") >= there.index(False)
    assert ends == {True, False}


def test_enough_is_said_only_when_every_step_is_shown() -> None:
    verdicts = set()
    for question, shown, written in examples("enough"):
        verdicts.add(written.endswith(" yes ."))
        assert written.endswith(" yes .") == all(gold_shown(question, shown))
    assert verdicts == {True, False}


def test_a_claim_is_called_right_only_if_it_is() -> None:
    verdicts = set()
    for question, shown, written in examples("check"):
        claim = re.search(r" Claim : (.*) \. Check :$", shown)
        assert claim is not None
        assert written.endswith(" right .") == (claim[1] in {answer.strip() for answer in question.answers})
        verdicts.add(written.endswith(" right ."))
    assert verdicts == {True, False}


def test_the_passages_that_support_are_the_gold_ones() -> None:
    for question, shown, written in examples("support"):
        for number in re.findall(r"# (\d+)", written):
            text = re.search(rf" # {number} : (.*?) # {number}", shown)
            assert text is not None
            gold = {sampler().corpus.by_id(ident).text.strip() for ident in question.gold_ids}
            assert text[1].strip() in gold
        assert written.count("#") == len(question.gold_ids)


def test_a_copy_repeats_the_sequence_before_the_gap_and_tells_where_to_copy_from() -> None:
    gaps, kinds = set(), set()
    for number in range(120):
        run = replace(tasks(), vocabulary=4000, tokenizer=Ids())._copy_trajectory(random.Random(number))
        shown, written = list(run.segments[0].ids), list(run.segments[1].ids)
        given = next(count for count in (1, GIVEN) if shown[count : count + len(written)] == written)
        length = given + len(written)
        assert COPY_LENGTHS[0] <= length <= COPY_LENGTHS[1]
        assert shown[-given:] == shown[:given]
        gaps.add(len(shown) - length - given)
        kinds.add((given, len(set(shown)) <= COPY_ALPHABETS[1]))
    assert min(gaps) == COPY_GAPS[0] and max(gaps) > 0.9 * COPY_GAPS[1]
    assert (1, False) in kinds and (GIVEN, True) in kinds and (GIVEN, False) not in kinds


@pytest.mark.slow
@pytest.mark.parametrize("done", [0.1, 1.0])
def test_a_draw_depends_on_the_progress_and_the_generator_alone(done: float) -> None:
    first, other = tasks(), tasks()
    other.draw(0.3, random.Random(9))
    drawn = [[tasks.draw(done, random.Random(number)).ids for number in range(3)] for tasks in (first, other)]
    assert drawn[0] == drawn[1]


def test_training_begins_with_records_and_copies_and_ends_with_every_task() -> None:
    settings = BaseTaskSettings()
    start = {task for task, share in tasks().shares(0.0).items() if share > 0}
    assert start == {"records", "copy"}
    assert tasks().shares(1.0) == pytest.approx(settings.shares)
    assert set(settings.shares) == set(get_args(Task))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"shares": {"reed": 1.0}}, "reed"),
        ({"shares": {"records": 0.0}}, "above 0"),
        ({"shares": {"read": 1.0}}, "warm_up=0"),
        ({"passages": [5, 2]}, "fewest and the most"),
    ],
)
def test_tasks_that_cannot_be_drawn_are_refused_with_a_sentence(given: JsonObject, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        make_settings(BaseTaskSettings, given)
