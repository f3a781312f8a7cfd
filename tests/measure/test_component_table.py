"""The table of a component beside the agent: the rows of one group, and what both sides leave out."""

from dataclasses import replace

from tests.measure.samples import ORBO, QUESTION, fault, found, run

from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.question import Question
from coseek.measure.component_scores import component_run, component_table
from coseek.measure.score import Scores, score_run, summaries_of

TWO, THREE = QUESTION, replace(QUESTION, id="q2", hops=3)
FOUR = replace(QUESTION, id="q3", hops=3)


def scores() -> tuple[Scores, Scores]:
    """Own answers: one right of two hops, one wrong and one fault of three. The generator answers the first two."""
    runs = [
        run(found("o", ORBO), question=TWO),
        run(found("o", ORBO), question=THREE, answer="Zun"),
        fault(FOUR),
    ]
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
    table = component_table(*scores(), group="3 hops", generator="qwen")
    assert table.columns == ("run", "questions", "em, own answer", "em, qwen", "passages", "tokens")
    assert table.rows == (
        ("agent", "1", "0.000", "1.000", "1.0", "17.0"),
        ("other", "1", "0.000", "1.000", "1.0", "17.0"),
    )


def test_what_either_side_leaves_out_is_said_under_its_own_name() -> None:
    notes = component_table(*scores(), ["em"]).notes
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
