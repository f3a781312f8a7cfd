"""Fears about reasons: lines that state what no passage tells, answers that are not gold."""

import random
import re
from functools import cache

from coseek.data.answers import exact_match
from coseek.data.passage import Passage
from coseek.data.question import Question, plan_of
from coseek.lab.training.examples import ExampleSampler
from coseek.lab.world.rationales import MARK, NOW, constraints_of, kind_of, rationale
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import World, make_world


@cache
def world() -> World:
    return make_world(WorldSettings(size="compact", train=300, dev=0, test=0, seed=4))


def shown(world: World, question: Question) -> list[Passage]:
    """Two others, and the gold passages from the last one on."""
    others = [passage for passage in world.corpus if passage.id not in question.gold_ids][:2]
    return others + [world.corpus.by_id(ident) for ident in reversed(question.gold_ids)]


@cache
def sampler() -> ExampleSampler:
    return ExampleSampler.of_world(world(), "train")


def written(question: Question) -> str:
    return rationale(question, shown(world(), question), sampler().facts)


def test_the_answer_behind_the_mark_is_a_gold_one_for_every_kind_of_question() -> None:
    kinds = set()
    for question in world().questions["train"]:
        before, mark, answer = written(question).rpartition(MARK)
        assert mark and exact_match(answer, question.answers), (question, answer)
        assert MARK not in before
        kinds.add((kind_of(question), question.meta.get("compare")))
    assert len(kinds) == 4


def test_every_line_names_a_gold_passage_with_its_number_and_a_value_that_it_tells() -> None:
    for question in world().questions["train"]:
        text = written(question)
        for number, ident in enumerate(reversed(question.gold_ids), start=3):
            passage = world().corpus.by_id(ident)
            assert f"{passage.title} # {number} ," in text
        for line in re.sub(f"{NOW}.*? [?.](?= )", "", text.partition(MARK)[0]).split(" .")[:-1]:
            title, hash_sign, facts = line.partition(" # ")
            if hash_sign and not facts.partition(" ,")[2].startswith(" no "):
                passage = next(passage for passage in shown(world(), question) if passage.title == title)
                for fact in facts.partition(" ,")[2].split(" , "):
                    assert f"{fact.partition(' :')[2]} " in f"{passage.text} {passage.title} "


def test_a_year_before_1000_is_earlier_than_one_after_it() -> None:
    """As text, 1003 stands before 965."""
    made = make_world(WorldSettings(seed=12, size="tiny", lexicon="drawn", train=300, dev=0, test=0))
    compared = [question for question in made.questions["train"] if question.meta.get("compare") == "earlier"]
    dates = [[int(step.sub_answer) for step in plan_of(question)] for question in compared]
    assert any(min(pair) < 1000 <= max(pair) for pair in dates)
    facts = ExampleSampler.of_world(made, "train").facts
    for question, pair in zip(compared, dates, strict=True):
        first = plan_of(question)[pair.index(min(pair))]
        assert made.corpus.by_id(first.gold_id).title.strip() in question.answers
        assert f" {min(pair)} is before {max(pair)} ." in rationale(question, shown(made, question), facts)


def test_passages_are_read_in_their_order_up_to_the_one_with_both_given_values() -> None:
    facts, seen = sampler().facts, set()
    for question in (question for question in world().questions["train"] if kind_of(question) == "constraint"):
        passages = sampler().passages(question, 6, random.Random(question.id))
        lines = rationale(question, passages, facts).partition(MARK)[0].split(" .")[:-1]
        gold = [passage.id in question.gold_ids for passage in passages].index(True)
        titles = [passage.title.strip() for passage in passages]
        assert [line.partition(" # ")[0].strip() for line in lines] == titles[: gold + 1]
        first, second = ((str(row["relation"]), str(row["value"])) for row in constraints_of(question))
        assert lines[-1].endswith(f" , {first[0]} : {first[1]} , {second[0]} : {second[1]}")
        for passage, line in zip(passages[:gold], lines, strict=False):
            stated = {fact.relation: fact.value for fact in facts.get(passage.id, ())}
            assert (f" , no {first[0]}" in line) == (first[0] not in stated)
            assert (f" , {second[0]} : " in line) == (stated.get(first[0]) == first[1] and second[0] in stated)
            seen |= {mark for mark in (" , no ", f" , {second[0]} :") if mark in line}
    assert " , no " in seen and len(seen) > 1


def test_what_is_still_asked_holds_the_value_that_was_found_and_no_step_before_it() -> None:
    lengths = set()
    for question in world().questions["train"]:
        plan = plan_of(question)
        left = [step.rest for step in plan if step.rest]
        if kind_of(question) != "composition":
            assert not left
            continue
        lengths.add(len(plan))
        assert len(left) == len(plan) - 1 and not plan[-1].rest
        for step, following, rest in zip(plan, plan[1:], left, strict=False):
            assert f" {step.sub_answer} " in rest and f" {plan[0].mention} " not in rest
            assert following.mention == step.sub_answer
        assert all(f"{NOW}{rest}" in written(question) for rest in left)
    assert lengths == {1, 2, 3, 4}
