"""Fears about reasons: lines that state what no passage tells, answers that are not gold."""

import re
from functools import cache

from coseek.data.question import Question
from coseek.measure.answers import exact_match
from coseek.world.plan import constraints_of, kind_of, plan_of
from coseek.world.rationales import MARK, NOW, rationale
from coseek.world.settings import WorldSettings
from coseek.world.world import World, make_world


@cache
def world() -> World:
    return make_world(WorldSettings(size="compact", train=300, dev=0, test=0, seed=4))


def written(world: World, question: Question) -> str:
    numbers = {ident: number for number, ident in enumerate(reversed(question.gold_ids), start=3)}
    titles = {ident: world.corpus.by_id(ident).title for ident in question.gold_ids}
    return rationale(question, numbers, titles)


def test_the_answer_behind_the_mark_is_a_gold_one_for_every_kind_of_question() -> None:
    kinds = set()
    for question in world().questions["train"]:
        before, mark, answer = written(world(), question).rpartition(MARK)
        assert mark and exact_match(answer, question.answers), (question, answer)
        assert MARK not in before
        kinds.add((kind_of(question), question.meta.get("compare")))
    assert len(kinds) == 4


def test_every_line_names_a_gold_passage_with_its_number_and_a_value_that_it_tells() -> None:
    for question in world().questions["train"]:
        text = written(world(), question)
        for number, ident in enumerate(reversed(question.gold_ids), start=3):
            passage = world().corpus.by_id(ident)
            assert f"{passage.title} # {number} " in text
        for line in re.sub(f"{NOW}.*? [?.](?= )", "", text.partition(MARK)[0]).split(" .")[:-1]:
            title, hash_sign, facts = line.partition(" # ")
            if hash_sign and kind_of(question) != "constraint":
                passage = next(one for one in map(world().corpus.by_id, question.gold_ids) if one.title == title)
                for fact in facts.partition(" ,")[2].split(" , "):
                    assert f"{fact.partition(' :')[2]} " in f"{passage.text} {passage.title} "


def test_a_name_stands_behind_what_it_is_found_by() -> None:
    seen = set()
    for question in world().questions["train"]:
        text, plan = written(world(), question), plan_of(question)
        if kind_of(question) == "constraint":
            title = world().corpus.by_id(plan[0].gold_id).title.strip()
            values = [str(row["value"]) for row in constraints_of(question)]
            assert max(text.index(f": {value}") for value in values) < text.index(f": {title} #")
            seen.add("constraint")
        elif question.meta.get("compare") == "earlier":
            verdict = text.partition(" is before ")[2].partition(MARK)[0]
            date, _, name = verdict.partition(" . ")[2].partition(" ")
            assert int(date) == min(int(step.sub_answer) for step in plan)
            assert exact_match(name.removesuffix(" ."), question.answers)
            seen.add("earlier")
    assert seen == {"constraint", "earlier"}


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
        for found, following, rest in zip(plan, plan[1:], left, strict=False):
            assert f" {found.sub_answer} " in rest and f" {plan[0].mention} " not in rest
            assert following.mention == found.sub_answer
        assert all(f"{NOW}{rest}" in written(world(), question) for rest in left)
    assert lengths == {1, 2, 3, 4}
