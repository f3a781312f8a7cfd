"""Fears about generator and judge in scores: faults as zeros, unread verdicts as no, two numbers under one name."""

from dataclasses import replace

import pytest
from tests.measure.samples import MIRA, ORBO, QUESTION, fault, found, run

from coseek.data.question import Question
from coseek.data.sheet import Reply, Verdict
from coseek.measure.component import component_run, component_table
from coseek.measure.score import Verdicts, judged, score_run, score_runs, summaries_of
from coseek.measure.table import main_table

OTHERS = [replace(QUESTION, id=f"q{number}") for number in range(2, 6)]


def entry(question: Question, answer: str | None, fault: str | None = None) -> Reply:
    return Reply(question.id, 0, "c", answer, fault=fault, passage_ids=("orbo", "mira"), context_tokens=17)


def verdicts(*said: tuple[str, bool | None]) -> Verdicts:
    return {(QUESTION.id, response): Verdict(QUESTION.id, response, right) for response, right in said}


@pytest.mark.parametrize(
    ("answer", "said", "expected"),
    [
        ("in Velora", True, {"judge_acc": 1, "gen_acc": 1}),
        ("in Velora", False, {"judge_acc": 0, "gen_acc": 1}),
        ("in Velora", None, {"gen_acc": 1}),
        ("the capital", True, {"judge_acc": 1, "gen_acc": 1}),
        ("the capital", False, {"judge_acc": 0, "gen_acc": 0}),
        ("the capital", None, {}),
    ],
)
def test_genacc_is_cover_em_or_the_judge_and_a_fault_is_never_a_no(
    answer: str, said: bool | None, expected: dict[str, float]
) -> None:
    assert judged(QUESTION, answer, verdicts((answer, said))) == expected


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_no_answer_is_wrong_without_a_judge(answer: str | None) -> None:
    assert judged(QUESTION, answer, {}) == {"judge_acc": 0, "gen_acc": 0}


def test_a_response_that_was_not_judged_is_in_no_mean_of_the_judge() -> None:
    assert judged(QUESTION, "the capital", {}) == {}


def test_without_a_judge_there_are_no_judged_metrics() -> None:
    assert not {"judge_acc", "gen_acc"} & set(score_run("a", [run()]).questions["q1"].metrics)


def test_a_component_has_the_generators_answer_and_the_agents_passages() -> None:
    trajectory = run(found("o", ORBO), found("m", MIRA), answer="Zun")
    scored = component_run("a", [trajectory], {("q1", 0): entry(QUESTION, "Velora")}).questions["q1"].metrics
    own = score_run("a", [trajectory]).questions["q1"].metrics
    assert (own["em"], scored["em"]) == (0, 1)
    assert (scored["context_passages"], scored["context_tokens"]) == (2, 17)
    for name in ("recall", "searches", "agent_tokens", "answer_hit"):
        assert scored[name] == own[name]


def test_faults_are_counted_and_in_no_mean() -> None:
    runs = [run(), *(run(question=question) for question in OTHERS[:3]), fault(OTHERS[3])]
    answers = {
        ("q1", 0): entry(QUESTION, "Velora"),
        ("q2", 0): entry(OTHERS[0], None, fault="the server choked"),
        ("q3", 0): entry(OTHERS[1], None),  # nothing that can be read as an answer: wrong, and no fault
    }
    scored = component_run("a", runs, answers)
    summary = summaries_of([scored], [QUESTION, *OTHERS], (), ["em", "answered"], 0).of("a")
    assert (summary.questions, summary.faults, summary.missing) == (2, 2, 3)
    assert (summary.metrics["em"].mean, summary.metrics["answered"].mean) == (0.5, 0.5)
    assert scored.stops == {"answered": 2, "generator_error": 1, "retriever_error": 1}


def test_both_columns_stand_in_one_table_and_an_agent_without_answers_has_a_dash() -> None:
    answering, silent = [run(found("o", ORBO), answer="Zun")], [run(found("o", ORBO), answer=None)]
    answers = {("q1", 0): entry(QUESTION, "Velora")}
    metrics = ("em", "answered", "context_passages", "context_tokens")
    runs = {"agent": answering, "s3": silent}
    component = [component_run(name, rows, answers) for name, rows in runs.items()]
    table = component_table(score_runs(runs), summaries_of(component, [QUESTION], (), metrics, 0), ["em"])
    assert table.columns == ("run", "questions", "em, own answer", "em, generator", "passages", "tokens")
    assert table.rows == (
        ("agent", "1", "0.000", "1.000", "2.0", "17.0"),
        ("s3", "1", "–", "1.000", "2.0", "17.0"),
    )


def test_unread_verdicts_are_said_below_the_table() -> None:
    runs = [run(answer="the capital"), run(answer="the capital", question=OTHERS[0])]
    scored = score_run("a", runs, verdicts(("the capital", False)))
    scores = summaries_of([scored], [QUESTION, OTHERS[0]], (), ["em", "gen_acc"], 0)
    assert scores.of("a").metrics["gen_acc"].n == 1
    assert "a: 1 questions have no readable verdict; they are not in gen_acc." in main_table(scores, ["gen_acc"]).notes


def test_questions_in_and_out_of_domain_are_set_apart() -> None:
    nq, other = replace(QUESTION, meta={"dataset": "nq"}), replace(OTHERS[0], meta={"data_source": "musique"})
    scored = score_run("a", [run(question=nq), run(question=other, answer="Zun")])
    scores = summaries_of([scored], [nq, other], ("dataset",), ["em"], 0, in_domain=["nq"])
    means = {summary.group: summary.metrics["em"].mean for summary in scores.summaries}
    assert means == {"all": 0.5, "in domain": 1, "out of domain": 0, "nq": 1, "musique": 0}
