"""Fears about generator and judge in scores: faults as zeros, unread verdicts as no, two numbers under one name."""

from dataclasses import replace
from typing import cast

import pytest
from tests.measure.samples import MIRA, ORBO, QUESTION, fault, found, run

from coseek.core.files import JsonObject
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.question import Question
from coseek.measure.component_scores import component_run, component_table
from coseek.measure.leaderboard import leaderboard
from coseek.measure.score import Scores, Verdicts, judged, score_run, score_runs, summaries_of
from coseek.measure.table import comparison_table, main_table, scores_json

OTHERS = [replace(QUESTION, id=f"q{number}") for number in range(2, 6)]


def entry(question: Question, answer: str | None, fault: str | None = None) -> GeneratedAnswer:
    return GeneratedAnswer(question.id, 0, "c", answer, fault=fault, passage_ids=("orbo", "mira"), context_tokens=17)


def verdicts(*said: tuple[str, bool | None]) -> Verdicts:
    return {(QUESTION.id, response): Verdict(QUESTION.id, response, right) for response, right in said}


@pytest.mark.parametrize(
    ("answer", "said", "expected"),
    [
        ("in Velora", True, {"judge_acc": 1, "gen_acc": 1, "unread_verdicts": 0}),
        ("in Velora", False, {"judge_acc": 0, "gen_acc": 1, "unread_verdicts": 0}),
        ("in Velora", None, {"gen_acc": 1, "unread_verdicts": 1}),
        ("the capital", True, {"judge_acc": 1, "gen_acc": 1, "unread_verdicts": 0}),
        ("the capital", False, {"judge_acc": 0, "gen_acc": 0, "unread_verdicts": 0}),
        ("the capital", None, {"unread_verdicts": 1}),
    ],
)
def test_genacc_is_cover_em_or_the_judge_and_a_fault_is_never_a_no(
    answer: str, said: bool | None, expected: dict[str, float]
) -> None:
    assert judged(QUESTION, answer, verdicts((answer, said))) == expected


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_no_answer_is_wrong_without_a_judge(answer: str | None) -> None:
    assert judged(QUESTION, answer, {}) == {"judge_acc": 0, "gen_acc": 0, "unread_verdicts": 0}


def test_a_response_that_was_not_judged_is_unknown() -> None:
    assert judged(QUESTION, "the capital", {}) == {"unread_verdicts": 1}


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


def test_an_agent_that_only_searches_is_wrong_where_its_generator_writes_no_answer() -> None:
    trajectory = replace(run(answer=None), protocol="s3")
    scored = component_run("a", [trajectory], {("q1", 0): entry(QUESTION, None)}, {}).questions["q1"].metrics
    assert (scored["em"], scored["cover_em"], scored["gen_acc"]) == (0, 0, 0)
    assert "em" not in score_run("a", [trajectory]).questions["q1"].metrics  # nobody was asked


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
    assert table.rows == (("agent", "1", "0.000", "1.000", "2.0", "17.0"), ("s3", "1", "–", "1.000", "2.0", "17.0"))


def said(*rights: bool | None) -> tuple[list[Question], Verdicts]:
    """Questions q1 … qn, and what the judge says of the answer `the capital` to each."""
    questions = [QUESTION, *OTHERS][: len(rights)]
    read = {
        (one.id, "the capital"): Verdict(one.id, "the capital", right)
        for one, right in zip(questions, rights, strict=True)
    }
    return questions, read


def test_an_unreadable_verdict_does_not_make_a_run_look_better() -> None:
    """Two answers of three hold a gold answer, and of the third the judge says nothing that can be read."""
    questions, read = said(True, True, None)
    answers = ["Velora", "in Velora", "the capital"]
    runs = [run(answer=answer, question=question) for answer, question in zip(answers, questions, strict=True)]
    read = {
        **read,
        **{(one.id, text): Verdict(one.id, text, True) for one, text in zip(questions[:2], answers[:2], strict=True)},
    }
    scores = summaries_of([score_run("a", runs, read)], questions, (), ["em", "gen_acc", "judge_acc"], 0)
    for name in ("gen_acc", "judge_acc"):
        mean = scores.of("a").metrics[name]
        assert mean.mean == pytest.approx(2 / 3) and mean.most == pytest.approx(1) and (mean.n, mean.unread) == (3, 1)
    table = main_table(scores, ["em", "gen_acc"])
    assert table.rows[0][3].startswith("≥ 0.667 [") and table.rows[0][3].endswith("] (1 of 3 unread)")
    assert any("1 of 3 verdicts could not be read" in note and "1.000 at most" in note for note in table.notes)
    metrics = cast(JsonObject, cast(list[JsonObject], scores_json(scores)["summaries"])[0]["metrics"])
    assert cast(JsonObject, metrics["gen_acc"])["unread"] == 1 and "unread" not in cast(JsonObject, metrics["em"])


def test_a_run_of_which_no_verdict_can_be_read_may_be_anything() -> None:
    questions, read = said(None, None)
    runs = [run(answer="the capital", question=question) for question in questions]
    scored = score_run("a", runs, read)
    assert all("gen_acc" not in row.metrics and row.unknown["gen_acc"] == 1 for row in scored.questions.values())
    mean = summaries_of([scored], questions, (), ["em", "gen_acc"], 0).of("a").metrics["gen_acc"]
    assert (mean.mean, mean.most, mean.unread, mean.n) == (0, 1, 2, 2)


def test_of_several_runs_of_a_question_the_unread_ones_are_its_share() -> None:
    read = {("q1", "the capital"): Verdict("q1", "the capital", True)}
    runs = [run(answer="the capital"), run(answer="Zun", seed=1), run(answer="", seed=2), run(answer="Velora", seed=3)]
    scored = score_run("a", runs, read)
    row = scored.questions["q1"]
    assert (row.metrics["gen_acc"], row.unknown["gen_acc"]) == (0.5, 0.25)  # right, unknown, wrong, right by its words
    assert (row.metrics["judge_acc"], row.unknown["judge_acc"]) == (0.25, 0.5)
    mean = summaries_of([scored], [QUESTION], (), ["em", "gen_acc"], 0).of("a").metrics["gen_acc"]
    assert (mean.mean, mean.most, mean.unread, mean.n) == (0.5, 0.75, 1, 1)


def test_where_a_verdict_is_unread_on_one_side_nobody_is_compared_by_judges() -> None:
    """Even where words settle it: else only answers that are right would stay on that side."""
    questions, read = said(True, False, True)
    first = score_run("a", [run(answer="the capital", question=one) for one in questions], read)
    second = score_run("b", [run(answer="in Velora", question=one) for one in questions], {})
    scores = summaries_of([first, second], questions, (), ["em", "gen_acc"], 0)
    assert "gen_acc" not in scores.comparisons[0].metrics and scores.comparisons[0].unread == 3
    assert any(
        "3 questions lack a readable verdict" in note for note in comparison_table(scores, ["em", "gen_acc"]).notes
    )


def test_a_leaderboard_calls_a_lower_bound_one() -> None:
    questions, read = said(True, None)
    runs = {("a", "nq"): score_run("a", [run(answer="the capital", question=one) for one in questions], read)}
    board = leaderboard(runs, "gen_acc")
    assert board.cells["a", "nq"].missing == 0
    assert board.table().rows[0][1].startswith("≥ 0.500 [") and "(1 of 2 unread)" in board.table().rows[0][1]
    assert any("1 of 2 verdicts could not be read" in note for note in board.notes())
    mean = board.average("a", ["nq"])
    assert mean is not None and (mean.unread, mean.most) == (1, 1.0)


def test_questions_in_and_out_of_domain_are_set_apart() -> None:
    nq, other = replace(QUESTION, meta={"dataset": "nq"}), replace(OTHERS[0], meta={"data_source": "musique"})
    scored = score_run("a", [run(question=nq), run(question=other, answer="Zun")])
    scores = summaries_of([scored], [nq, other], ("dataset",), ["em"], 0, in_domain=["nq"])
    means = {summary.group: summary.metrics["em"].mean for summary in scores.summaries}
    assert means == {"all": 0.5, "in domain": 1, "out of domain": 0, "nq": 1, "musique": 0, "macro": 0.5}


# --- the table beside the agent


TWO, THREE = QUESTION, replace(QUESTION, id="q2", hops=3)
FOUR = replace(QUESTION, id="q3", hops=3)


def both_scores() -> tuple[Scores, Scores]:
    """Own answers: one right of two hops, one wrong and one fault of three. The generator answers the first two."""
    runs = [run(found("o", ORBO), question=TWO), run(found("o", ORBO), question=THREE, answer="Zun"), fault(FOUR)]
    answers = {(one.id, 0): _answer(one) for one in (TWO, THREE)}
    asked = [TWO, THREE, FOUR]
    metrics = ("em", "answered", "context_passages", "context_tokens")
    return (
        summaries_of([score_run("agent", runs), score_run("other", runs[1:])], asked, ("hops",), metrics, 0),
        summaries_of(
            [component_run("agent", runs, answers), component_run("other", runs[1:], answers)],
            asked,
            ("hops",),
            metrics,
            0,
        ),
    )


def _answer(question: Question) -> GeneratedAnswer:
    return GeneratedAnswer(question.id, 0, "c", "Velora", passage_ids=("orbo",), context_tokens=17)


def test_a_component_table_of_a_group_has_that_groups_rows_on_both_sides() -> None:
    table = component_table(*both_scores(), group="3 hops", generator="qwen")
    assert table.columns == ("run", "questions", "em, own answer", "em, qwen", "passages", "tokens")
    assert table.rows == (
        ("agent", "1", "0.000", "1.000", "1.0", "17.0"),
        ("other", "1", "0.000", "1.000", "1.0", "17.0"),
    )


def test_what_either_side_leaves_out_is_said_under_its_own_name() -> None:
    notes = component_table(*both_scores(), ["em"]).notes
    assert notes == (
        "Means with 95 % bootstrap intervals over questions.",
        "agent: 1 trajectories have a fault; they are in no mean.",
        "agent: 1 questions are missing.",
        "agent → generator: 1 trajectories have a fault; they are in no mean.",
        "agent → generator: 1 questions are missing.",
        "other: 1 trajectories have a fault; they are in no mean.",
        "other: 2 questions are missing.",
        "other → generator: 1 trajectories have a fault; they are in no mean.",
        "other → generator: 2 questions are missing.",
    )


def test_an_unread_verdict_is_said_below_the_component_table() -> None:
    own, component = (
        summaries_of([score_run("agent", [run(answer="the capital")], {})], [QUESTION], (), ["gen_acc", "answered"], 0)
        for _ in range(2)
    )
    notes = component_table(own, component, ["gen_acc"]).notes
    assert [note.partition(": 1 of 1 verdicts")[0] for note in notes[1:]] == ["agent", "agent → generator"]


def test_the_judge_reads_the_generators_answer() -> None:
    verdicts = {("q1", "the capital"): Verdict("q1", "the capital", True)}
    answers = {("q1", 0): GeneratedAnswer("q1", 0, "c", "the capital")}
    scored = component_run("agent", [run(answer="Zun")], answers, verdicts).questions["q1"].metrics
    assert (scored["em"], scored["judge_acc"]) == (0, 1)
