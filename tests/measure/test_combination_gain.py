"""Every cell, field and point of a combination gain, beside runs that are small enough to count."""

from dataclasses import replace

import numpy as np
import pytest
from tests.measure.samples import QUESTION

from coseek.data.question import Question
from coseek.measure.component_scores import CombinationGain
from coseek.measure.intervals import Difference, Interval, bootstrap_mean, paired_difference
from coseek.measure.plots import Series, line_plot
from coseek.measure.score import UNREAD, ScoredRow, ScoredRun, collect
from coseek.measure.table import interval_json, scores_json, show

QUESTIONS = [replace(QUESTION, id=f"q{n}") for n in range(8)]
EM = {"one": [1, 0, 0, 0, 0, 0, 0, 0], "matched": [1, 1, 0, 0, 0, 0, 0, 0], "agent": [1, 0, 1, 1, 1, 1, 1, 1]}
"""Whether each run is right, question by question."""


def scored(name: str, passages: float, questions: list[Question] = QUESTIONS, **extra: float) -> ScoredRun:
    """A run that is right where `EM` says, with as many passages and ten tokens each."""
    rows: list[ScoredRow] = [
        (
            question,
            "answered",
            {"em": float(right), "context_passages": passages, "context_tokens": 10 * passages} | extra,
        )
        for question, right in zip(questions, EM[name], strict=False)
    ]
    return collect(name, rows)


def small(**changes: object) -> CombinationGain:
    whole = CombinationGain(
        "em",
        {1: scored("one", 1.0, recall=0.25)},
        scored("matched", 2.5, recall=0.5),
        scored("agent", 2.5, recall=0.75),
        [question.id for question in QUESTIONS],
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def mean(values: list[float], seed: int = 0) -> Interval:
    found = bootstrap_mean(values, np.random.default_rng(seed))
    assert found is not None
    return found


def lead(other: str, seed: int = 0) -> Difference:
    sides = [{str(n): float(value) for n, value in enumerate(EM[name])} for name in (other, "agent")]
    found = paired_difference(sides[0], sides[1], np.random.default_rng(seed))
    assert found is not None
    return found


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
        values = [{"gen_acc": 1.0} if one else {} if unread else {"gen_acc": 0.0} for one in right]
        rows = zip(QUESTIONS, values, strict=True)
        return collect(name, [(question, "answered", {UNREAD: float(unread), **found}) for question, found in rows])

    gain = replace(small(), metric="gen_acc", agent=judged("agent", 1, EM["one"]))
    assert gain.gain(judged("matched", 0, EM["matched"])) is None  # the agent's only known answer would lead by 1


def test_what_a_point_leaves_out_is_said_below_the_table() -> None:
    table = small(matched=scored("matched", 2.5, QUESTIONS[:6], recall=0.5)).table()
    assert table.rows[1][1] == "6"
    assert table.notes[1:] == ("matched: 2 questions are missing.",)


def test_a_missing_verdict_is_said_below_the_table_of_a_judged_metric() -> None:
    rows: list[ScoredRow] = [
        (QUESTIONS[0], "answered", {"gen_acc": 1.0, "unread_verdicts": 0.0}),
        (QUESTIONS[1], "answered", {"unread_verdicts": 1.0}),
    ]
    runs = [collect(name, rows) for name in ("one", "matched", "agent")]
    found = CombinationGain("gen_acc", {1: runs[0]}, runs[1], runs[2], [one.id for one in QUESTIONS[:2]])
    assert [note.partition(":")[0] for note in found.table().notes[1:]] == ["one", "matched", "agent"]


def test_the_lead_is_drawn_with_the_seed_of_the_gain() -> None:
    agent = small()
    assert agent.gain(agent.matched) == lead("matched")
    assert lead("matched").mcnemar == pytest.approx(2 * (1 + 7) / 2**7)  # six of seven questions that differ
    assert replace(agent, seed=3).gain(agent.matched) == lead("matched", seed=3)
    assert lead("matched", seed=3) != lead("matched")


def test_the_json_holds_every_point_and_the_test_at_equal_passages() -> None:
    tree = small(matched=scored("matched", 2.5, QUESTIONS[:6], recall=0.5)).to_json()
    found = paired_difference(
        {str(n): float(EM["matched"][n]) for n in range(6)},
        {str(n): float(EM["agent"][n]) for n in range(8)},
        np.random.default_rng(0),
    )
    assert found is not None
    points = tree.pop("points")
    assert tree == {
        "metric": "em",
        "gain_at_equal_passages": {**interval_json(found.difference), "p": found.p, "mcnemar": found.mcnemar},
    }
    assert isinstance(points, list)
    assert [set(point) for point in points if isinstance(point, dict)] == [
        {"run", "questions", "faults", "missing", "metrics"}
    ] * 3
    matched = points[1]
    assert isinstance(matched, dict) and isinstance(matched["metrics"], dict)
    assert (matched["run"], matched["questions"], matched["faults"], matched["missing"]) == ("matched", 6, 0, 2)
    assert matched["metrics"]["em"] == interval_json(mean([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]))
    assert set(matched["metrics"]) == {"em", "context_passages", "context_tokens", "recall"}


def test_several_data_sets_have_a_table_and_rows_of_their_own() -> None:
    idents = [question.id for question in QUESTIONS]
    gain = small(datasets={"nq": idents[:2], "musique": idents[2:]})
    assert [*gain.tables()] == ["em", "By data set"] and [*small().tables()] == ["em"]
    shown = gain.tables()["By data set"]
    assert shown.columns[:3] == ("em", "nq", "musique")
    assert [cell.partition(" ")[0] for cell in shown.rows[2][:4]] == ["agent", "0.500", "1.000", "0.750"]
    tree = gain.to_json()
    assert tree["by_dataset"] == scores_json(gain.by_dataset)["summaries"] and "by_dataset" not in small().to_json()


def test_runs_without_a_common_question_have_no_lead_and_say_so() -> None:
    strangers = [replace(question, id=f"other {question.id}") for question in QUESTIONS]
    apart = small(agent=scored("agent", 2.0, strangers))
    assert apart.to_json()["gain_at_equal_passages"] is None
    assert [row[-1] for row in apart.table().rows] == ["–"] * 3


@pytest.mark.slow
def test_the_plot_is_the_curve_with_its_band_and_the_agent_as_a_point() -> None:
    found = small(rag={1: scored("one", 1.0), 3: scored("matched", 3.0)})
    one, three = mean([1.0] + [0.0] * 7), mean([1.0, 1.0] + [0.0] * 6)
    assert one.low is not None and one.high is not None and three.low is not None and three.high is not None
    curve = Series("naive RAG", (1.0, 3.0), (0.125, 0.25), (one.low, three.low), (one.high, three.high), markers=True)
    assert found.plot() == line_plot([curve, Series("agent", (2.5,), (0.875,), markers=True)], "passages", "em")


def test_one_point_of_naive_rag_has_no_band() -> None:
    points = [Series("naive RAG", (1.0,), (0.125,), markers=True), Series("agent", (2.5,), (0.875,), markers=True)]
    assert small().plot() == line_plot(points, "passages", "em")


def test_a_point_without_a_context_is_not_in_the_plot() -> None:
    bare = collect("one", [(QUESTIONS[0], "answered", {"em": 1.0})])
    other = collect("one", [(QUESTIONS[0], "answered", {"context_passages": 4.0})])
    found = small(rag={1: scored("one", 1.0), 2: bare, 3: scored("matched", 3.0), 4: other})
    assert found.plot() == small(rag={1: scored("one", 1.0), 3: scored("matched", 3.0)}).plot()
