"""Fears about an agent as a component: passages that were not served, work done twice, faults that count as answers."""

from dataclasses import replace
from pathlib import Path

from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, fault, found, run
from tests.scripted import Scripted, generator, judge

from coseek.core.errors import ModelError
from coseek.graders.grading import answer_cache, generate_answers, judge_claims, verdict_cache
from coseek.graders.judge import Claim

SECOND = replace(QUESTION, id="q2", question="who founded Orbo?", answers=("Mira Tan",))


def test_the_generator_is_given_what_the_agent_served_and_not_its_words(tmp_path: Path) -> None:
    model = Scripted(lambda _: "Velora")
    runs = [run(found("orbo", ORBO, OTHER), found("mira", MIRA), answer="what the agent says")]
    answers = generate_answers(generator(model), runs, answer_cache(tmp_path, generator(model)))
    (entry,) = answers.values()
    assert (entry.answer, entry.passage_ids) == ("Velora", ("orbo", "other", "mira"))
    assert "what the agent says" not in model.calls[0][0]


def test_selected_passages_alone_are_served(tmp_path: Path) -> None:
    model = Scripted(str)
    searches = (replace(found("orbo", ORBO, OTHER), selected=("orbo",)), replace(found("mira", MIRA), selected=()))
    answers = generate_answers(generator(model), [run(*searches)], answer_cache(tmp_path, generator(model)))
    assert next(iter(answers.values())).passage_ids == ("orbo",)


def test_a_run_that_ended_by_a_fault_is_not_asked(tmp_path: Path) -> None:
    model = Scripted(str)
    assert generate_answers(generator(model), [fault()], answer_cache(tmp_path, generator(model))) == {}
    assert not model.calls


def test_a_second_start_asks_only_what_is_missing_or_failed(tmp_path: Path) -> None:
    def says(prompt: str) -> str:
        if "who founded" in prompt and fails:
            raise ModelError("overloaded")
        return "Velora"

    fails = True
    model = Scripted(says)
    made, sheet = generator(model), answer_cache(tmp_path, generator(model))
    runs = [run(found("o", ORBO)), run(found("o", ORBO), question=SECOND)]
    first = generate_answers(made, runs, sheet)
    assert first["q2", 0].fault == "overloaded" and first["q2", 0].answer is None
    fails = False
    model.calls.clear()
    second = generate_answers(made, [*runs, run(found("m", MIRA), seed=1)], sheet)
    assert [len(call) for call in model.calls] == [2]
    assert {key: entry.answer for key, entry in second.items()} == {
        ("q1", 0): "Velora",
        ("q2", 0): "Velora",
        ("q1", 1): "Velora",
    }
    model.calls.clear()
    assert generate_answers(made, runs, sheet) == {key: second[key] for key in (("q1", 0), ("q2", 0))}
    assert not model.calls


def test_an_answer_to_other_passages_is_not_taken_for_this_run(tmp_path: Path) -> None:
    model = Scripted(lambda prompt: "Velora" if "Mira Tan is" in prompt else "unknown")
    sheet = answer_cache(tmp_path, generator(model))
    assert generate_answers(generator(model), [run(found("o", ORBO))], sheet)["q1", 0].answer == "unknown"
    assert generate_answers(generator(model), [run(found("m", MIRA))], sheet)["q1", 0].answer == "Velora"


def test_equal_claims_are_judged_once_and_empty_ones_never(tmp_path: Path) -> None:
    model = Scripted(lambda _: "yes")
    made = judge(model)
    claims = [Claim(QUESTION, answer) for answer in ("Velora", "Velora", " ", "")]
    claims.append(Claim(replace(QUESTION, id="q9", answers=()), "Velora"))
    assert judge_claims(made, claims, verdict_cache(tmp_path, made)).keys() == {("q1", "Velora")}
    assert [len(call) for call in model.calls] == [1]
    judge_claims(made, claims, verdict_cache(tmp_path, made))
    assert len(model.calls) == 1


def test_an_unreadable_verdict_is_asked_again_and_is_never_a_no(tmp_path: Path) -> None:
    texts = ["perhaps", "yes"]
    made = judge(Scripted(lambda _: texts.pop(0)))
    claims = [Claim(QUESTION, "Velora City")]
    assert judge_claims(made, claims, verdict_cache(tmp_path, made))["q1", "Velora City"].right is None
    assert judge_claims(made, claims, verdict_cache(tmp_path, made))["q1", "Velora City"].right is True


def test_a_verdict_by_other_gold_answers_is_not_taken(tmp_path: Path) -> None:
    model = Scripted(lambda prompt: "yes" if "Velora" in prompt.partition("Zun")[0] else "no")
    made, sheet = judge(model), verdict_cache(tmp_path, judge(model))
    claims = [Claim(replace(QUESTION, answers=(gold,)), "the town") for gold in ("Velora", "Zun")]
    assert [judge_claims(made, [claim], sheet)["q1", "the town"].right for claim in claims] == [True, False]
    assert judge_claims(made, claims[:1], sheet)["q1", "the town"].right is True  # neither displaced the other
