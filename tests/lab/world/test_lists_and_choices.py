"""Lists and multiple choice in a laptop world: off unless asked for, sound, and worth more to F1 than to EM."""

import random
from functools import cache
from itertools import permutations
from pathlib import Path
from statistics import mean

import pytest
from tests.agents.test_expert import run as run_expert

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.answers import exact_match, f1
from coseek.data.question import Question, plan_of
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.lab.training.examples import ExampleSampler
from coseek.lab.world.plan import LIST, kind_of, listed
from coseek.lab.world.rationales import MARK
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.retrieval.retrievers.bm25 import Bm25

TINY = WorldSettings(size="tiny", seed=5, train=60, dev=60, test=0)


@cache
def lists() -> World:
    return make_world(TINY.model_copy(update={"lists": 0.8, "comparison": 0.0, "constraint": 0.0}))


@cache
def choices() -> World:
    return make_world(TINY.model_copy(update={"choices": 4, "comparison": 0.4}))


def asked(world: World) -> list[Question]:
    return [one for split in ("train", "dev") for one in world.questions[split]]


def list_questions() -> list[Question]:
    return [one for one in asked(lists()) if kind_of(one) == LIST]


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
    for expert in (ExpertAgent.perfect(), ExpertAgent(ExpertSettings(stop_early=1.0, restate=True))):
        ends = [(run_expert(expert, one, index=index)[0][-1].answer or "", one.answers) for one in list_questions()]
        scores[expert.settings.stop_early] = [
            mean(float(measure(*end)) for end in ends) for measure in (exact_match, f1)
        ]
    assert min(scores[0]) > 0.9
    assert scores[1][0] < 0.1 and scores[1][1] > 0.3


def test_a_rationale_of_a_list_ends_in_all_of_its_names() -> None:
    sampler = ExampleSampler.of_world(lists(), "train")
    for question in [one for one in sampler.questions if kind_of(one) == LIST][:20]:
        written = sampler.example_of(question, 6, random.Random(0)).written
        assert exact_match(written.rpartition(MARK)[2], question.answers)


def test_options_hold_the_answer_once_and_are_not_searched_for() -> None:
    plain = make_world(TINY.model_copy(update={"comparison": 0.4}))
    assert [*choices().corpus] == [*plain.corpus]
    for question, other in zip(asked(choices()), asked(plain), strict=True):
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
