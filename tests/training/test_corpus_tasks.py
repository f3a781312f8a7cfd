"""Fears about a corpus in the base tasks: a fact that its passage does not show, and a question that is held out."""

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.scripted import Scripted, generator

from coseek.core.files import Json
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, plan_of
from coseek.lab.training.base_tasks import BaseTasks, BaseTaskSettings, Task
from coseek.lab.training.examples import ExampleSampler
from coseek.models.tokenizer import ByteTokenizer

PASSAGES = (
    Passage("song", " Get Low", " Get Low is a song by Dillon Francis."),
    Passage("man", " Dillon Francis", " Dillon Francis was born in Los Angeles on October 5, 1987."),
    Passage("town", " Los Angeles", " Los Angeles is a city."),
    Passage("other", " Get High", " Get High is a song by Kesha."),
)


def step(passage: str, source: str, target: str, phrase: str, back: bool = False) -> dict[str, Json]:
    return {
        "passage": passage, "from": source, "to": target, "phrase": phrase, "back": back,
        "question": f"{source} {phrase} what?",
    }  # fmt: skip


def question(ident: str, answer: str, *path: dict[str, Json]) -> Question:
    gold = tuple(str(step["passage"]) for step in path)
    return Question(ident, f"{ident}?", (answer,), gold, len(path), {"path": list(path)})


BY = step("song", "Get Low", "Dillon Francis", "is a song by")
BORN = step("man", "Dillon Francis", "October 5, 1987", "was born on")
TWO = question("when was the singer born", "October 5, 1987", BY, BORN)
BACK = question("which song is by him", "Get Low", step("song", "Dillon Francis", "Get Low", "is a song by", back=True))
CUT = question("when did it come out", "2013", step("song", "Get Low", "2013", "came out in"))
BARE = replace(TWO, id="bare", meta={})


def sampler(questions: Sequence[Question] = (TWO, BACK)) -> ExampleSampler:
    return ExampleSampler.of_corpus(Corpus(PASSAGES, "test"), questions)


def tasks() -> BaseTasks:
    reader = generator(Scripted(str), prompt="generator-laptop")
    return BaseTasks(BaseTaskSettings(), 0, ByteTokenizer(), ByteTokenizer().size, reader, sampler(), 1.0)


def written(task: Task, questions: Sequence[Question]) -> set[str]:
    return {tasks().example(task, sampler(questions), 1.0, random.Random(seed)).written for seed in range(40)}


def test_a_made_question_and_an_own_one_may_share_an_id() -> None:
    made, own = TWO, replace(BACK, id=TWO.id)
    assert sampler([made, own]).found == {**sampler([made]).found, **sampler([own]).found}


def test_a_question_is_answered_along_its_path() -> None:
    for text in written("read", [TWO]):
        first, second, answer = text.split(" .", 2)
        assert first.startswith(" Get Low # ") and first.endswith(" , is a song by : Dillon Francis")
        assert second.startswith(" Dillon Francis # ") and second.endswith(" , was born on : October 5, 1987")
        assert answer == " Answer : October 5, 1987"


def test_a_step_from_a_value_to_its_passage_states_the_fact_as_the_passage_does() -> None:
    for text in written("read", [BACK]):
        assert text.startswith(" Get Low # ") and text.endswith(" , is a song by : Dillon Francis . Answer : Get Low")


def test_a_question_whose_passage_no_longer_shows_the_fact_is_left_out() -> None:
    assert sampler([TWO, CUT]).questions == [TWO]
    shorter = [replace(passage, text=passage.text[:20]) for passage in PASSAGES]
    assert ExampleSampler.of_corpus(Corpus(shorter, "cut"), [TWO, BACK]).questions == []


def test_a_question_of_another_corpus_is_left_out() -> None:
    assert sampler([replace(TWO, gold_ids=("song", "elsewhere")), replace(TWO, gold_ids=())]).supported == []


def test_of_a_question_without_a_path_support_alone_is_learnt() -> None:
    both = sampler([TWO, BARE])
    assert both.questions == [TWO] and both.supported == [TWO, BARE]
    assert all(text.count("#") == 2 for text in written("support", [TWO, BARE]))


def test_a_comparison_ends_with_the_answer_and_not_with_the_last_name_of_its_path() -> None:
    compared = replace(TWO, answers=("no",))
    assert all(text.endswith(" Answer : no") for text in written("read", [compared]))


def test_every_fact_of_a_drill_stands_in_its_passage() -> None:
    for seed in range(40):
        example = tasks().example("drill", sampler(), 1.0, random.Random(seed))
        for fact in example.written.removesuffix(" .").split(" ."):
            relation, _, value = fact.partition(" , ")[2].rpartition(" : ")
            number = int(fact.partition(" # ")[2].partition(" ,")[0])
            assert relation and value in example.passages[number - 1].text


def test_the_next_thing_to_look_up_is_the_step_s_own_question() -> None:
    ends = {text.rpartition(" Next : ")[2] for text in written("next", [TWO]) if " Next : " in text}
    assert ends == {f"{step.sub_question} ." for step in plan_of(TWO)}
