"""Worlds with unanswerable questions: these have no answer in any passage, and nothing else has changed."""

import random
import re
from functools import cache
from typing import cast

import pytest
from tests.agents.test_expert import run as run_expert

from coseek.agents.protocol import load_protocol
from coseek.agents.tag import NOT_FOUND
from coseek.data.question import plan_of
from coseek.data.trajectory import Author
from coseek.lab.agents.expert import PERFECT, ExpertAgent, ExpertSettings
from coseek.lab.parts.synthetic import SyntheticSettings, synthetic_labels
from coseek.lab.training import drills
from coseek.lab.training.drills import make_drills
from coseek.lab.training.examples import ExampleSampler
from coseek.lab.world.oracle import SUPPORT
from coseek.lab.world.passages import spaced
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retrievers.bm25 import Bm25


@cache
def world(unanswerable: float = 0.3) -> World:
    return make_world(WorldSettings(size="tiny", seed=4, train=150, dev=60, test=0, unanswerable=unanswerable))


@cache
def bm25() -> Bm25:
    return Bm25.over(world().corpus)


def test_no_passage_states_what_an_unanswerable_question_lacks() -> None:
    lost = [question for questions in world().questions.values() for question in questions if not question.answerable]
    assert 0.28 < len(lost) / 210 < 0.4
    for question in lost:
        withheld = cast("list[str]", question.meta["withheld"])
        assert question.answers == () and not any(map(world().corpus.has, withheld))
        hops = [hop for hop, step in enumerate(plan_of(question)) if step.gold_id in withheld]
        assert hops
        for hop in hops:
            assert all(world().oracle.relevance(question, passage, hop) < SUPPORT for passage in world().corpus)


def test_the_answerable_questions_are_those_of_the_world_without_the_setting() -> None:
    plain = {question.id: question for questions in world(0.0).questions.values() for question in questions}
    for questions in world().questions.values():
        for question in questions:
            if question.answerable:
                assert question == plain[question.id] and all(map(world().corpus.has, question.gold_ids))
            else:
                assert question.question == plain[str(question.meta["twin_of"])].question
    assert {passage.id for passage in world().corpus} < {passage.id for passage in world(0.0).corpus}


def test_the_expert_declines_what_lacks_a_passage_and_never_anything_else() -> None:
    for expert in (ExpertAgent(PERFECT), ExpertAgent(ExpertSettings(stop_early=0, blind_guess=0))):
        for question in world().questions["dev"]:
            moves, searches = run_expert(expert, question, index=bm25())
            declined = moves[-1].answer == f" {NOT_FOUND}"
            assert declined == (not question.answerable)
            assert searches or not declined


def test_lessons_are_made_of_the_passages_that_are_there() -> None:
    protocol = load_protocol("search-r1", "laptop")
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    assert len(list(make_drills(world(), protocol, tokenizer, 200, random.Random(0)))) == 200
    assert synthetic_labels(world(), "train", SyntheticSettings(), 0)
    sampler = ExampleSampler.of_world(world(), "train")
    assert all(question.answerable for question in sampler.questions)
    assert all(sampler.drill(3, random.Random(seed)).passages for seed in range(100))


def test_a_drill_finds_a_fact_exactly_where_its_passage_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drills, "MAX_OBSERVATION_TOKENS", 10_000)  # the tokens are bytes here
    protocol = load_protocol("search-r1", "laptop")
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    named = {name: entity for entity in world().oracle.facts.values() for name in entity.names if name != entity.name}
    named |= {entity.title: entity for entity in world().oracle.facts.values()}
    counts = {True: 0, False: 0}
    for drill in make_drills(world(), protocol, tokenizer, 200, random.Random(0), asking=1.0):
        if len(drill.segments) == 2:
            continue  # nothing to ask for: it tells instead
        before, observation, *lines = drill.segments
        assert all(request.text.removeprefix("<think>") in before.text for request in lines[::2])
        for request, reply in zip(lines[::2], lines[1::2], strict=True):
            assert (request.author, reply.author) == (Author.ENVIRONMENT, Author.AGENT)
            match = re.search(r" Next : the (.*?) of (.*) \.$", request.text)
            assert match is not None
            entity = named[match[2]]
            fact, is_found = entity.fact(match[1]), reply.text.removesuffix("</think>") != " Not found ."
            counts[is_found] += 1
            title = spaced(entity.title.strip())
            assert fact is not None and is_found == (f"{title} # " in observation.text)
            if is_found:
                line = re.match(rf"{re.escape(title)} # (\d) , {match[1]} : {re.escape(fact.value)} \.", reply.text)
                assert line is not None and f"{title} # {line[1]} :" in observation.text
    assert min(counts.values()) > 0.25 * sum(counts.values()) > 100
