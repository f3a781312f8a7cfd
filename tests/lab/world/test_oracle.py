"""The oracle: what it accepts, what it finds relevant, and whose answer it knows."""

from functools import cache

import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most

from coseek.core.errors import DataError
from coseek.data.question import Question, plan_of
from coseek.lab.world.oracle import GOLD, MISLEADING, OTHER_HOP, SUPPORT
from coseek.lab.world.rationales import kind_of
from coseek.lab.world.world import World, WorldSettings, make_world


@cache
def world() -> World:
    return make_world(WorldSettings(size="tiny", seed=5, namesakes=0.3, outdated=0.5))


def questions() -> list[Question]:
    return [question for questions in world().questions.values() for question in questions]


def chain(hops: int = 2) -> Question:
    return next(question for question in questions() if kind_of(question) == "composition" and question.hops == hops)


def asking(*answers: str) -> Question:
    return Question("q", " Where ?", answers)


def test_the_judge_accepts_every_name_in_a_sentence_and_nothing_empty() -> None:
    oracle = world().oracle
    for question in questions():
        assert all(oracle.judge(question, answer) for answer in question.answers)
        assert not oracle.judge(question, "")
        assert not oracle.judge(question, " . ")
    assert oracle.judge(asking("Ada Stone"), "It must be the great ada stone!")
    assert not oracle.judge(asking("Ada Stone"), "Ada Stoneham")


def test_the_judge_does_not_read_an_answer_inside_another_name() -> None:
    oracle = make_world(WorldSettings(size="compact", seed=5, train=1, dev=0, test=0)).oracle
    cities = [entity for entity in oracle.facts.values() if entity.kind == "city"]
    inner, outer = next((city, other) for city in cities for other in cities if f" {city.name}" in other.name)
    assert not oracle.judge(asking(*inner.names), outer.name)
    assert oracle.judge(asking(*inner.names), f"{outer.name} or {inner.name}")


def test_the_judge_reads_yes_and_no_from_the_first_word() -> None:
    assert world().oracle.judge(asking("yes"), " Yes , they do .")
    assert not world().oracle.judge(asking("yes"), " no , not yes")
    assert not world().oracle.judge(asking("no"), " nowhere")


@settings(max_examples=at_most(60))
@given(response=st.text(max_size=40))
def test_the_judge_takes_any_text(response: str) -> None:
    assert world().oracle.judge(chain(), response) in (True, False)


def test_the_passage_of_a_hop_is_worth_all_and_that_of_another_hop_less_than_support() -> None:
    question = chain()
    first, second = (world().corpus.by_id(ident) for ident in question.gold_ids)
    oracle = world().oracle
    assert oracle.relevance(question, first, 0) == oracle.relevance(question, second, 1) == GOLD == 100
    assert oracle.relevance(question, second, 0) in (OTHER_HOP, SUPPORT)
    assert oracle.relevance(question, first) == oracle.relevance(question, second) == GOLD
    assert MISLEADING < OTHER_HOP < 60 <= SUPPORT < GOLD


def test_a_passage_about_the_past_and_a_namesake_mislead() -> None:
    oracle = world().oracle
    about = {entity_id: ident for ident, entity_id in oracle.stale.items()}
    question, gold_id = next((q, q.gold_ids[0]) for q in questions() if q.hops == 1 and q.gold_ids[0] in about)
    assert oracle.relevance(question, world().corpus.by_id(about[gold_id]), 0) == MISLEADING
    people = [entity for entity in oracle.facts.values() if entity.kind == "person" and entity.title != entity.name]
    simple = next(q for q in questions() if q.hops == 1 and q.gold_ids[0] in {person.id for person in people})
    gold = oracle.facts[simple.gold_ids[0]]
    namesake = next(person for person in people if person.name == gold.name and person is not gold)
    assert oracle.relevance(simple, world().corpus.by_id(namesake.id), 0) in (MISLEADING, OTHER_HOP)


def test_marriage_is_supported_by_the_other_side() -> None:
    oracle = world().oracle
    for question in questions():
        for hop, step in enumerate(plan_of(question)):
            gold = oracle.facts[step.gold_id].fact(step.relation)
            partner = oracle.facts[gold.object_id] if gold and gold.object_id and step.relation == "spouse" else None
            if partner and partner.fact("spouse") and kind_of(question) == "composition":
                assert oracle.relevance(question, world().corpus.by_id(partner.id), hop) == SUPPORT
                return
    raise AssertionError("no question about a marriage that both sides tell")


def test_a_hop_or_a_plan_that_is_not_there_is_refused() -> None:
    with pytest.raises(DataError, match="hops 0 to 1, not 2"):
        world().oracle.relevance(chain(), world().corpus[0], hop=2)
    with pytest.raises(DataError, match="has no plan"):
        world().oracle.relevance(Question("nq-1", "who?"), world().corpus[0])


def test_a_query_is_matched_with_the_hop_it_is_for() -> None:
    oracle = world().oracle
    for question in questions():
        if kind_of(question) == "composition":
            for hop, step in enumerate(plan_of(question)):
                assert oracle.hop_of(question, f" {step.mention} {step.relation}") == hop
    assert oracle.hop_of(chain(), "zebra") is None


def test_a_query_of_the_relation_alone_is_for_the_hop_that_has_it_and_not_for_any() -> None:
    """The gold passage of another hop, which the agent has read already, must not count as what it looks for."""
    oracle, late = world().oracle, 0
    for question in questions():
        plan = plan_of(question)
        relations = [step.relation for step in plan]
        for hop, step in enumerate(plan):
            if kind_of(question) == "composition" and relations.count(step.relation) == 1:
                assert oracle.hop_of(question, step.relation) == hop
                gold = [oracle.relevance(question, world().corpus.by_id(step.gold_id), hop) for step in plan]
                assert gold.index(max(gold)) == hop and gold.count(GOLD) == 1
                late += hop > 0
    assert late > 0


def test_a_query_that_fits_two_hops_alike_is_for_any_hop() -> None:
    comparison = next(question for question in questions() if kind_of(question) == "comparison")
    first, second = plan_of(comparison)
    assert first.relation == second.relation
    assert world().oracle.hop_of(comparison, first.relation) is None
    assert world().oracle.hop_of(comparison, f"{second.mention} {second.relation}") == 1
