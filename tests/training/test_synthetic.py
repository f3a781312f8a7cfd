"""Fears about examples: gold passages that are not there, numbers of other passages, other ids than will be read."""

import random
import re
from functools import cache

import pytest
from tests.scripted import Scripted, generator

from coseek.data.trajectory import Author
from coseek.lab.training.examples import ExampleSampler, ExampleWriter
from coseek.lab.world.rationales import MARK, NOW
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.tokenizer import ByteTokenizer
from coseek.training.sft.settings import Phase


@cache
def sampler() -> ExampleSampler:
    return ExampleSampler.of_world(make_world(WorldSettings(size="tiny", train=60, dev=0, test=0)), "train")


def teacher(*phases: Phase) -> ExampleWriter:
    return ExampleWriter(
        [sampler()], generator(Scripted(str), prompt="generator-laptop"), ByteTokenizer(), phases, (3, 5)
    )


@pytest.mark.parametrize("count", [2, 4, 6])
def test_a_lesson_has_every_gold_passage_among_others_in_any_order(count: int) -> None:
    orders = set()
    for number, question in enumerate(sampler().questions):
        example = sampler().example_of(question, count, random.Random(number))
        ids = [passage.id for passage in example.passages]
        assert set(question.gold_ids) < set(ids) and len(ids) == len(set(ids))
        assert len(ids) <= max(count, len(set(question.gold_ids)) + 1)
        orders.add(ids.index(question.gold_ids[0]))
    assert len(orders) > 1


def test_one_passage_means_the_gold_ones_alone() -> None:
    for question in sampler().questions[:20]:
        example = sampler().example_of(question, 1, random.Random(0))
        assert sorted(passage.id for passage in example.passages) == sorted({*question.gold_ids})


def test_the_numbers_in_a_lesson_are_those_in_the_prompt() -> None:
    for number, question in enumerate(sampler().questions):
        example = sampler().example_of(question, 4, random.Random(number))
        prompt = teacher().generator.context(question.question, example.passages).prompt
        facts_alone = re.sub(f"{NOW}.*? [?.](?= )", "", example.written.partition(MARK)[0])
        for line in facts_alone.split(" .")[:-1]:
            title, hash_sign, facts = line.partition(" # ")
            if hash_sign:
                assert f"{title} # {facts.partition(' ,')[0]} :" in prompt


def test_a_drill_states_what_its_passages_state() -> None:
    for number in range(40):
        example = sampler().drill(4, random.Random(number))
        prompt = teacher().generator.context(example.question.question, example.passages).prompt
        lines = example.written.split(" .")[:-1]
        assert [line.partition(" #")[0].strip() for line in lines] == [
            clause.partition(" , ")[0].strip() for clause in example.question.question.split(" ;")
        ]
        for line in lines:
            title, _, facts = line.partition(" # ")
            ordinal, _, fact = facts.partition(" ,")
            passage = example.passages[int(ordinal) - 1]
            assert passage.title == title and f"{title} # {ordinal} :" in prompt
            assert f"{fact.partition(' :')[2]} " in passage.text


def test_what_is_learnt_is_read_in_the_very_ids_that_will_be_asked() -> None:
    made = teacher(Phase(until=1, hops={1: 1.0, 2: 1.0}))
    run = made.draw(0.5, random.Random(3))
    prompt, written = run.segments
    assert (prompt.author, written.author) == (Author.ENVIRONMENT, Author.AGENT)
    assert written.ids[-1] == made.tokenizer.eos_id
    assert prompt.ids == tuple(made.tokenizer.encode_data(prompt.text))
    assert made.generator.read(written.text).answer is not None


def test_the_phases_say_which_lessons_come_when() -> None:
    made = teacher(Phase(until=0.5, hops={0: 1.0}), Phase(until=1, hops={2: 1.0}))
    assert {made.draw(0.2, random.Random(n)).question.hops for n in range(5)} == {0}
    assert {made.draw(0.7, random.Random(n)).question.hops for n in range(5)} == {2}


def test_no_curriculum_is_not_drills_alone() -> None:
    made = teacher()
    drawn = [made.draw(0.5, random.Random(n)).question for n in range(20)]
    known_ids = {question.id for question in sampler().questions}
    assert {question.id for question in drawn} <= known_ids and len({question.hops for question in drawn}) > 1
