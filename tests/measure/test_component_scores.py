"""Fears about generator and judge in scores: faults as zeros, unread verdicts as no, two numbers under one name."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from tests.measure.samples import MIRA, ORBO, QUESTION, fault, run, search_of

from coseek.cli.commands.leaderboard import make_leaderboard
from coseek.core.files import JsonObject
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.question import Question
from coseek.measure.component_scores import CombinationGain, component_run, component_table, serving_scores
from coseek.measure.intervals import Difference, Interval, bootstrap_mean, paired_difference
from coseek.measure.plots import Series, line_plot
from coseek.measure.score import (
    UNREAD,
    ScoredRun,
    Verdicts,
    collect,
    judged,
    score_run,
    score_runs,
    summaries_of,
)
from coseek.measure.table import comparison_table, difference_json, main_table, metrics_json, scores_json, show

OTHERS = [replace(QUESTION, id=f"q{number}") for number in range(2, 6)]


def entry(question: Question, answer: str | None, fault: str | None = None) -> GeneratedAnswer:
    return GeneratedAnswer(question.id, 0, "c", answer, fault=fault, passage_ids=("orbo", "mira"), context_tokens=17)


def verdicts(*rulings: tuple[str, bool | None]) -> Verdicts:
    return {(QUESTION.id, response): Verdict(QUESTION.id, response, right) for response, right in rulings}


@pytest.mark.parametrize(
    ("answer", "ruling", "expected"),
    [
        ("in Velora", True, {"judge_acc": 1, "gen_acc": 1, "unread_verdicts": 0}),
        ("in Velora", False, {"judge_acc": 0, "gen_acc": 1, "unread_verdicts": 0}),
        ("in Velora", None, {"gen_acc": 1, "unread_verdicts": 1}),
        ("the capital", True, {"judge_acc": 1, "gen_acc": 1, "unread_verdicts": 0}),
        ("the capital", False, {"judge_acc": 0, "gen_acc": 0, "unread_verdicts": 0}),
        ("the capital", None, {"unread_verdicts": 1}),
    ],
)
def test_genacc_is_cover_em_or_the_judge_and_no_fault(
    answer: str, ruling: bool | None, expected: dict[str, float]
) -> None:
    assert judged(QUESTION, answer, verdicts((answer, ruling))) == expected


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_without_a_judge_no_answer_is_wrong_and_any_other_unknown(answer: str | None) -> None:
    assert judged(QUESTION, answer, {}) == {"judge_acc": 0, "gen_acc": 0, "unread_verdicts": 0}
    assert judged(QUESTION, "the capital", {}) == {"unread_verdicts": 1}
    assert not {"judge_acc", "gen_acc"} & set(score_run("a", [run()]).questions["q1"].metrics)


def test_a_component_has_the_generators_answer_and_the_agents_passages() -> None:
    trajectory = run(search_of("o", ORBO), search_of("m", MIRA), answer="Zun")
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


def test_servings_are_compared_with_the_first_of_their_run_and_across_runs_with_the_same_one() -> None:
    def served(name: str, answer: str) -> ScoredRun:
        return component_run(name, [run(search_of("o", ORBO))], {("q1", 0): entry(QUESTION, answer)})

    runs = [
        [served(f"{name} {kind}", answer) for kind in ("selected", "all")]
        for name, answer in (("a", "Velora"), ("b", "Zun"))
    ]
    scores = serving_scores(runs, [QUESTION], ["em"], 0)
    assert [(pair.run, pair.against) for pair in scores.comparisons] == [
        ("a all", "a selected"), ("b all", "b selected"), ("b selected", "a selected"), ("b all", "a all"),
    ]  # fmt: skip
    assert [*scores.of("b all").metrics] == ["em", "context_passages", "context_tokens"]
    assert (scores.of("a all").metrics["em"].mean, scores.of("b all").metrics["em"].mean) == (1, 0)


def test_both_columns_stand_in_one_table_and_an_agent_without_answers_has_a_dash() -> None:
    answering, silent = [run(search_of("o", ORBO), answer="Zun")], [run(search_of("o", ORBO), answer=None)]
    answers = {("q1", 0): entry(QUESTION, "Velora")}
    metrics = ("em", "answered", "context_passages", "context_tokens")
    runs = {"agent": answering, "s3": silent}
    component = [component_run(name, rows, answers) for name, rows in runs.items()]
    written = summaries_of(component, [QUESTION], ("hops",), metrics, 0)
    own = score_runs(runs, questions=[QUESTION, OTHERS[0]], by=("hops",))
    table = component_table(own, written, ["em"])
    assert table.columns == ("run", "questions", "em, own answer", "em, generator", "passages", "tokens")
    assert table.rows == (("agent", "1", "0.000", "1.000", "2.0", "17.0"), ("s3", "1", "–", "1.000", "2.0", "17.0"))
    assert table.notes[1].startswith("agent: 1 questions are missing")


def questions_judged(*rights: bool | None) -> tuple[list[Question], Verdicts]:
    """Questions q1 … qn, and what the judge says of the answer `the capital` to each."""
    questions = [QUESTION, *OTHERS][: len(rights)]
    pairs = zip((question.id for question in questions), rights, strict=True)
    return questions, {(ident, "the capital"): Verdict(ident, "the capital", right) for ident, right in pairs}


def test_an_unreadable_verdict_does_not_make_a_run_look_better() -> None:
    """Two answers of three hold a gold answer, and of the third the judge says nothing that can be read."""
    questions, read = questions_judged(True, True, None)
    answers = ["Velora", "in Velora", "the capital"]
    runs = [run(answer=answer, question=question) for answer, question in zip(answers, questions, strict=True)]
    for question, text in zip(questions[:2], answers[:2], strict=True):
        read = {**read, (question.id, text): Verdict(question.id, text, True)}
    scores = summaries_of([score_run("a", runs, read)], questions, (), ["em", "gen_acc", "judge_acc"], 0)
    for name in ("gen_acc", "judge_acc"):
        mean = scores.of("a").metrics[name]
        assert mean.mean == pytest.approx(2 / 3) and mean.most == pytest.approx(1) and (mean.n, mean.unread) == (3, 1)
    table = main_table(scores, ["em", "gen_acc"])
    assert table.rows[0][3].startswith("≥ 0.667 [") and table.rows[0][3].endswith("] (1 of 3 unread)")
    assert any("1 of 3 verdicts are missing" in note and "1.000 at most" in note for note in table.notes)
    metrics = cast(JsonObject, cast(list[JsonObject], scores_json(scores)["summaries"])[0]["metrics"])
    assert cast(JsonObject, metrics["gen_acc"])["unread"] == 1 and "unread" not in cast(JsonObject, metrics["em"])


@pytest.mark.parametrize(
    ("text", "cell", "note"),
    [
        ("", "– (no verdict)", "did not reply, 2 of 2: it answered 401"),
        ("hm", "≥ 0.000", "unreadable verdicts, 2 of 2: it answered 401"),
    ],
)
def test_a_judge_that_never_replied_is_no_judge_that_accepts_nothing(text: str, cell: str, note: str) -> None:
    questions = [QUESTION, OTHERS[0]]
    read = {(q.id, "the capital"): Verdict(q.id, "the capital", None, text, "it answered 401") for q in questions}
    runs = [run(answer="the capital", question=question) for question in questions]
    scores = summaries_of([score_run("a", runs, read)], questions, (), ["em", "judge_acc"], 0)
    table = main_table(scores, ["em", "judge_acc"])
    assert table.rows[0][3].startswith(cell) and any(note in line for line in table.notes), table


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
    questions, read = questions_judged(True, False, True)
    first = score_run("a", [run(answer="the capital", question=question) for question in questions], read)
    second = score_run("b", [run(answer="in Velora", question=question) for question in questions], {})
    scores = summaries_of([first, second], questions, (), ["em", "gen_acc"], 0)
    assert "gen_acc" not in scores.comparisons[0].metrics and scores.comparisons[0].unread == 3
    notes = comparison_table(scores, ["em", "gen_acc"]).notes
    assert any("3 questions lack a readable verdict" in note for note in notes)


def test_a_leaderboard_calls_a_lower_bound_one() -> None:
    questions, read = questions_judged(True, None)
    runs = {("a", "nq"): score_run("a", [run(answer="the capital", question=question) for question in questions], read)}
    board = make_leaderboard(runs, "gen_acc")
    assert board.cells["a", "nq"].missing == 0
    assert board.table().rows[0][1].startswith("≥ 0.500 [") and "(1 of 2 unread)" in board.table().rows[0][1]
    assert any("1 of 2 verdicts are missing" in note for note in board.notes())
    mean = board.average("a", ["nq"])
    assert mean is not None and (mean.unread, mean.most) == (1, 1.0)


def test_questions_in_and_out_of_domain_are_set_apart() -> None:
    nq, other = replace(QUESTION, meta={"dataset": "nq"}), replace(OTHERS[0], meta={"data_source": "musique"})
    scored = score_run("a", [run(question=nq), run(question=other, answer="Zun")])
    scores = summaries_of([scored], [nq, other], ("dataset",), ["em"], 0, in_domain=["nq"])
    means = {summary.group: summary.metrics["em"].mean for summary in scores.summaries}
    assert means == {"all": 0.5, "in domain": 1, "out of domain": 0, "nq": 1, "musique": 0, "macro": 0.5}


def test_the_judge_reads_the_generators_answer() -> None:
    verdicts = {("q1", "the capital"): Verdict("q1", "the capital", True)}
    answers = {("q1", 0): GeneratedAnswer("q1", 0, "c", "the capital")}
    scored = component_run("agent", [run(answer="Zun")], answers, verdicts).questions["q1"].metrics
    assert (scored["em"], scored["judge_acc"]) == (0, 1)


# --- combination gains: every field and point, beside runs that are small enough to count


QUESTIONS = [replace(QUESTION, id=f"q{n}") for n in range(8)]
EM = {"one": [1, 0, 0, 0, 0, 0, 0, 0], "matched": [1, 1, 0, 0, 0, 0, 0, 0], "agent": [1, 0, 1, 1, 1, 1, 1, 1]}
"""Whether each run is right, question by question."""


def scored(name: str, passages: float, questions: list[Question] = QUESTIONS, **extra: float) -> ScoredRun:
    """A run that is right where `EM` says, with as many passages and ten tokens each."""
    extra = {"context_passages": passages, "context_tokens": 10 * passages, **extra}
    pairs = zip(questions, EM[name], strict=False)
    return collect(name, [(question, "answered", {"em": float(right), **extra}) for question, right in pairs])


def small(**changes: object) -> CombinationGain:
    matched, agent = scored("matched", 2.5, recall=0.5), scored("agent", 2.5, recall=0.75)
    idents = [question.id for question in QUESTIONS]
    whole = CombinationGain("em", {1: scored("one", 1.0, recall=0.25)}, matched, agent, idents)
    return replace(whole, **changes)  # type: ignore[arg-type]


def mean(values: list[float], seed: int = 0) -> Interval:
    interval = bootstrap_mean(values, np.random.default_rng(seed))
    assert interval is not None
    return interval


def lead(other: str, seed: int = 0) -> Difference:
    sides = [{str(n): float(value) for n, value in enumerate(EM[name])} for name in (other, "agent")]
    difference = paired_difference(sides[0], sides[1], np.random.default_rng(seed))
    assert difference is not None
    return difference


def test_the_table_says_score_context_recall_and_lead_of_every_point() -> None:
    table = small().table()
    assert table.columns == ("passages from", "questions", "em", "passages", "tokens", "recall", "agent above it by")
    one, matched, agent = table.rows
    assert one[:3] == ("one", "8", show(mean([1.0] + [0.0] * 7)))
    assert [cell.partition(" ")[0] for cell in one[2:]] == ["0.125", "1.0", "10.0", "0.250", "0.750"]
    assert [cell.partition(" ")[0] for cell in matched[2:]] == ["0.250", "2.5", "25.0", "0.500", "0.625"]
    assert [cell.partition(" ")[0] for cell in agent[2:]] == ["0.875", "2.5", "25.0", "0.750", "–"]
    assert (one[-1], matched[-1]) == (show(lead("one").difference), show(lead("matched").difference))
    assert table.notes == ("Means with 95 % bootstrap intervals over questions.",)


def test_a_lead_counts_no_answer_without_a_verdict_also_if_it_is_covered() -> None:
    def judged(name: str, unread: int, right: list[int]) -> ScoredRun:
        values = [{"gen_acc": 1.0} if is_right else {} if unread else {"gen_acc": 0.0} for is_right in right]
        rows = zip(QUESTIONS, values, strict=True)
        return collect(name, [(question, "answered", {UNREAD: float(unread), **scores}) for question, scores in rows])

    gain = replace(small(), metric="gen_acc", agent=judged("agent", 1, EM["one"]))
    assert gain.gain(judged("matched", 0, EM["matched"])) is None  # the agent's only known answer would lead by 1


def test_the_lead_is_drawn_with_the_seed_of_the_gain() -> None:
    agent = small()
    assert agent.gain(agent.matched) == lead("matched")
    assert lead("matched").mcnemar == pytest.approx(2 * (1 + 7) / 2**7)  # six of seven questions that differ
    assert replace(agent, seed=3).gain(agent.matched) == lead("matched", seed=3)
    assert lead("matched", seed=3) != lead("matched")


def test_several_data_sets_have_a_table_and_rows_of_their_own() -> None:
    idents = [question.id for question in QUESTIONS]
    gain = small(datasets={"nq": idents[:2], "musique": idents[2:]})
    assert [*gain.tables()] == ["em", "By data set"] and [*small().tables()] == ["em"]
    shown = gain.tables()["By data set"]
    assert shown.columns[:3] == ("em", "nq", "musique")
    assert [cell.partition(" ")[0] for cell in shown.rows[2][:4]] == ["agent", "0.500", "1.000", "0.750"]
    tree = gain.to_json()
    assert tree["metric"] == "em" and tree["gain_at_equal_passages"] == difference_json(lead("matched"))
    points = cast(list[dict[str, object]], tree["points"])
    assert [[*point.values()][:4] for point in points] == [[name, 8, 0, 0] for name in ("one", "matched", "agent")]
    assert points[2]["metrics"] == metrics_json(gain.rows[2])
    assert tree["by_dataset"] == scores_json(gain.by_dataset)["summaries"] and "by_dataset" not in small().to_json()


def test_runs_without_a_common_question_have_no_lead_and_say_so() -> None:
    strangers = [replace(question, id=f"other {question.id}") for question in QUESTIONS]
    apart = small(agent=scored("agent", 2.0, strangers))
    assert apart.to_json()["gain_at_equal_passages"] is None
    assert [row[-1] for row in apart.table().rows] == ["–"] * 3


@pytest.mark.slow
def test_the_plot_is_the_curve_with_its_band_and_the_agent_as_a_point() -> None:
    results = small(rag={1: scored("one", 1.0), 3: scored("matched", 3.0)})
    one, three = mean([1.0] + [0.0] * 7), mean([1.0, 1.0] + [0.0] * 6)
    assert one.low is not None and one.high is not None and three.low is not None and three.high is not None
    curve = Series("naive RAG", (1.0, 3.0), (0.125, 0.25), (one.low, three.low), (one.high, three.high), markers=True)
    assert results.plot() == line_plot([curve, Series("agent", (2.5,), (0.875,), markers=True)], "passages", "em")


@pytest.mark.medium
def test_a_point_without_a_context_is_not_in_the_plot() -> None:
    bare = collect("one", [(QUESTIONS[0], "answered", {"em": 1.0})])
    other = collect("one", [(QUESTIONS[0], "answered", {"context_passages": 4.0})])
    results = small(rag={1: scored("one", 1.0), 2: bare, 3: scored("matched", 3.0), 4: other})
    assert results.plot() == small(rag={1: scored("one", 1.0), 3: scored("matched", 3.0)}).plot()
