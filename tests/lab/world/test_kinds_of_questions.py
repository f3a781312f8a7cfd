"""Known facts, lists and multiple choice in a laptop world: what is marked as known is taught, and nothing else is."""

import random
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from statistics import mean

import pytest
from tests.agents.test_expert import run as run_expert

from coseek.core.errors import SettingError
from coseek.core.progress import NoProgress
from coseek.core.settings import make_settings
from coseek.data.answers import exact_match, f1
from coseek.data.dataset import Dataset
from coseek.data.question import KNOWN, Question, plan_of
from coseek.lab.agents.expert import PERFECT, ExpertAgent, ExpertSettings
from coseek.lab.training.examples import ExampleSampler
from coseek.lab.world.rationales import LIST, MARK, kind_of, listed, recalled
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
    return [question for split in ("train", "dev") for question in world().questions[split] if question.meta.get(KNOWN)]


def test_a_world_with_known_facts_is_otherwise_the_world_without() -> None:
    without = world(0.0)
    assert KNOWN not in without.questions and [*world().corpus] == [*without.corpus]
    for split, questions in without.questions.items():
        assert [*map(plain, world().questions[split])] == questions


def test_a_question_is_marked_where_the_split_teaches_every_fact_of_it_and_nowhere_else() -> None:
    taught = {(question.gold_ids[0], plan_of(question)[0].relation) for question in world().questions[KNOWN]}
    facts = sum(len(entity.facts) for entity in world().oracle.facts.values())
    assert 0.35 < len(taught) / facts < 0.45
    for question in (question for split in ("train", "dev") for question in world().questions[split]):
        whole = all((step.gold_id, step.relation) in taught for step in plan_of(question))
        assert question.meta.get(KNOWN, False) is whole
    assert {"composition", "comparison"} == set(map(kind_of, marked()))


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
    searched = [run_expert(ExpertAgent(PERFECT), question, index=index)[1] for question in marked()]
    assert all(searched)
    once = RECALL.conclude(EpisodeState(marked()[0], ()), random.Random(0))
    assert exact_match(once.answer, marked()[0].answers)


def test_a_generator_is_taught_known_facts_from_passages_that_do_not_state_them() -> None:
    rng, sampler = random.Random(0), ExampleSampler.of_world(world(), KNOWN)
    for count in (0, 3, 12):
        example = sampler.recalled(count, rng)
        assert len(example.passages) <= count
        assert not {passage.id for passage in example.passages} & {*example.question.gold_ids}
        assert exact_match(example.written.rpartition(MARK)[2], example.question.answers)
    assert all(exact_match(recalled(question).rpartition(MARK)[2], question.answers) for question in marked())


@pytest.mark.medium
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


# --- lists and multiple choice: off unless asked for, sound, and worth more to F1 than to EM


TINY = WorldSettings(size="tiny", seed=5, train=60, dev=60, test=0)


@cache
def lists() -> World:
    return make_world(TINY.model_copy(update={"lists": 0.8, "comparison": 0.0, "constraint": 0.0}))


@cache
def choices() -> World:
    return make_world(TINY.model_copy(update={"choices": 4, "comparison": 0.4}))


def questions_of(world: World) -> list[Question]:
    return [question for split in ("train", "dev") for question in world.questions[split]]


def list_questions() -> list[Question]:
    return [question for question in questions_of(lists()) if kind_of(question) == LIST]


def test_a_list_names_one_value_of_each_of_two_to_four_passages_and_gives_none_away() -> None:
    assert len(list_questions()) > 80
    for question in list_questions():
        steps = plan_of(question)
        assert 2 <= len(steps) <= 4 and len({step.relation for step in steps}) == 1
        assert question.answers[0] == listed([step.sub_answer for step in steps])
        for step in steps:
            assert f" {step.sub_answer} " in f"{lists().corpus.by_id(step.gold_id).text} "
            assert f" {step.sub_answer} " not in f"{question.question} "


def test_the_oracle_wants_every_name_of_a_list_in_any_order() -> None:
    judge = lists().oracle.judge
    for question in list_questions()[:30]:
        names = [step.sub_answer for step in plan_of(question)]
        assert all(judge(question, listed(order)) for order in permutations(names))
        assert all(judge(question, answer) for answer in question.answers)
        assert not judge(question, listed(names[1:]))


def test_an_answer_with_some_names_of_a_list_is_paid_by_f1_and_not_by_em() -> None:
    index = Bm25.over(lists().corpus)
    scores = {}
    for expert in (ExpertAgent(PERFECT), ExpertAgent(ExpertSettings(stop_early=1.0, restate=True))):
        ends = [
            (run_expert(expert, question, index=index)[0][-1].answer or "", question.answers)
            for question in list_questions()
        ]
        scores[expert.settings.stop_early] = [
            mean(float(measure(*end)) for end in ends) for measure in (exact_match, f1)
        ]
    assert min(scores[0]) > 0.9
    assert scores[1][0] < 0.1 and scores[1][1] > 0.3


def test_a_rationale_of_a_list_ends_in_all_of_its_names() -> None:
    sampler = ExampleSampler.of_world(lists(), "train")
    for question in [question for question in sampler.questions if kind_of(question) == LIST][:20]:
        written = sampler.example_of(question, 6, random.Random(0)).written
        assert exact_match(written.rpartition(MARK)[2], question.answers)


def test_options_hold_the_answer_once_and_are_not_searched_for() -> None:
    plain = make_world(TINY.model_copy(update={"comparison": 0.4}))
    assert [*choices().corpus] == [*plain.corpus]
    for question, other in zip(questions_of(choices()), questions_of(plain), strict=True):
        options = question.meta["options"]
        assert isinstance(options, dict) and 2 <= len(options) <= 4 and question.judge_only
        assert question.searched == other.question and question.question.startswith(other.question)
        assert [option for option in options.values() if option in other.answers] == [question.answers[0]]
        judged = {letter: choices().oracle.judge(question, f"{letter}. {option}") for letter, option in options.items()}
        assert [letter for letter, right in judged.items() if right] == [question.meta["answer"]]


def test_a_world_without_them_is_written_as_before_and_with_them_comes_back(tmp_path: Path) -> None:
    for name, world in {"lists": lists(), "choices": choices(), "plain": make_world(TINY)}.items():
        world.save(tmp_path / name)
        assert World.load(tmp_path / name).digest == world.digest
        written = (tmp_path / name / "world.json").read_text()
        assert ('"lists"' in written, '"choices"' in written) == (name == "lists", name == "choices")


def test_a_list_has_no_options_and_one_is_no_choice() -> None:
    for given in ({"lists": 0.5, "choices": 4}, {"choices": 1}):
        with pytest.raises(SettingError, match="choices takes 2 to 9"):
            make_settings(WorldSettings, given)
