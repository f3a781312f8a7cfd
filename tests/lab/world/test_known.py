"""Parametric knowledge in a laptop world: what is marked as known is taught, and nothing else is."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.agents.test_expert import run as run_expert

from coseek.core.errors import SettingError
from coseek.core.progress import NoProgress
from coseek.core.settings import make_settings
from coseek.data.answers import exact_match
from coseek.data.dataset import Dataset
from coseek.data.question import KNOWN, Question, plan_of
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.lab.training.examples import ExampleSampler
from coseek.lab.world.plan import kind_of
from coseek.lab.world.rationales import MARK, recalled
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.models.model import EpisodeState
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.demonstrations import demonstrate
from coseek.retrieval.retrievers.bm25 import Bm25

RECALL = ExpertAgent(ExpertSettings(recall=1.0, restate=True))


@cache
def world(known: float = 0.4) -> World:
    return make_world(WorldSettings(size="tiny", seed=4, train=200, dev=120, test=0, known=known))


def plain(question: Question) -> Question:
    return replace(question, meta={name: value for name, value in question.meta.items() if name != KNOWN})


def marked() -> list[Question]:
    return [one for split in ("train", "dev") for one in world().questions[split] if one.meta.get(KNOWN)]


def test_a_world_with_known_facts_is_otherwise_the_world_without() -> None:
    without = world(0.0)
    assert KNOWN not in without.questions and [*world().corpus] == [*without.corpus]
    for split, questions in without.questions.items():
        assert [*map(plain, world().questions[split])] == questions


def test_a_question_is_marked_where_the_split_teaches_every_fact_of_it_and_nowhere_else() -> None:
    taught = {(one.gold_ids[0], plan_of(one)[0].relation) for one in world().questions[KNOWN]}
    facts = sum(len(entity.facts) for entity in world().oracle.facts.values())
    assert 0.35 < len(taught) / facts < 0.45
    for question in (one for split in ("train", "dev") for one in world().questions[split]):
        whole = all((step.gold_id, step.relation) in taught for step in plan_of(question))
        assert question.meta.get(KNOWN, False) is whole
    assert {"composition", "comparison"} == set(map(kind_of, marked()))


def test_the_file_of_a_world_without_known_facts_says_nothing_of_them(tmp_path: Path) -> None:
    for known, split in ((0.0, ["dev", "train"]), (0.4, ["dev", KNOWN, "train"])):
        made = world(known)
        made.save(tmp_path / str(known))
        assert World.load(tmp_path / str(known)).digest == made.digest
        assert Dataset(tmp_path / str(known)).splits == split
    assert '"known"' not in (tmp_path / "0.0" / "world.json").read_text()


def test_what_is_known_cannot_be_unanswerable() -> None:
    with pytest.raises(SettingError, match="set known or unanswerable to 0"):
        make_settings(WorldSettings, {"known": 0.3, "unanswerable": 0.2})


def test_the_expert_recalls_what_is_known_and_searches_for_the_rest() -> None:
    index = Bm25.over(world().corpus)
    for question in world().questions["dev"]:
        moves, searches = run_expert(RECALL, question, index=index)
        if question.meta.get(KNOWN):
            assert not searches and exact_match(moves[-1].answer, question.answers)
            assert all(f" {step.sub_answer} " in f"{moves[-1].thought} " for step in plan_of(question))
        assert "# None" not in moves[-1].thought
    searched = [run_expert(ExpertAgent.perfect(), one, index=index)[1] for one in marked()]
    assert all(searched)
    once = RECALL.conclude(EpisodeState(marked()[0], ()), random.Random(0))
    assert exact_match(once.answer, marked()[0].answers)


def test_a_generator_is_taught_known_facts_from_passages_that_do_not_state_them() -> None:
    rng, sampler = random.Random(0), ExampleSampler.of_world(world(), KNOWN)
    for count in (0, 3, 12):
        example = sampler.recalled(count, rng)
        assert len(example.passages) <= count
        assert not {one.id for one in example.passages} & {*example.question.gold_ids}
        assert exact_match(example.written.rpartition(MARK)[2], example.question.answers)
    assert all(exact_match(recalled(one).rpartition(MARK)[2], one.answers) for one in marked())


def test_half_of_the_examples_of_a_warm_start_are_of_known_facts_in_the_world_that_is_searched(tmp_path: Path) -> None:
    world().save(tmp_path)
    small = ["warm_start.worlds=1", "warm_start.world.size=tiny", "warm_start.world.train=20", "limits.max_tokens=9999"]
    recipe = load_recipe("r1", ["preset=laptop", *small, "limits.max_turn_tokens=9999"])
    protocol, data = recipe.load_protocol(), Dataset(tmp_path)
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    runs = demonstrate(recipe, protocol, tokenizer, Bm25.over(data.corpus), data, NoProgress())
    known = [run for run in runs if run.question.meta.get(KNOWN)]
    assert len(known) == len(runs) / 2
    assert all(run.question.hops is None and exact_match(run.answer, run.question.answers) for run in known)
