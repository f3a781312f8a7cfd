"""The measures of declining: their arithmetic against sums by hand, and what must not move because of them."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given, strategies as st
from tests.measure.samples import ORBO, QUESTION, run, search_of

from coseek.agents.tag import NOT_FOUND
from coseek.core.files import JsonObject
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.measure.abstention import QuestionOutcome, abstention_of, calibration, confidence
from coseek.measure.report import trajectory_html
from coseek.measure.score import score_runs, score_trajectory
from coseek.measure.table import abstention_tables, scores_json

SHARE = st.integers(0, 4).map(lambda quarters: quarters / 4)


@st.composite
def outcomes(draw: st.DrawFn) -> QuestionOutcome:
    answerable, answered = draw(st.booleans()), draw(SHARE)
    right = draw(SHARE.filter(lambda share: share <= answered)) if answerable else 0.0
    declined = draw(SHARE.filter(lambda share: share <= 1 - answered))
    sure = draw(st.floats(0, 1)) if answered and draw(st.booleans()) else None
    return QuestionOutcome(answerable, answered, declined, right, draw(st.integers(0, 99)), sure)


@given(st.lists(outcomes(), min_size=1, max_size=20))
def test_every_measure_is_the_ratio_of_sums_that_it_says(rows: list[QuestionOutcome]) -> None:
    result = abstention_of(rows)
    gone, there = [row for row in rows if not row.answerable], [row for row in rows if row.answerable]
    answered, right = math.fsum(outcome.answered for outcome in rows), math.fsum(outcome.right for outcome in rows)
    wanted = {
        "answered": fmean(outcome.answered for outcome in rows),
        "right_when_answered": right / answered if answered else None,
        "tokens_per_right": math.fsum(outcome.tokens or 0 for outcome in rows) / right if right else None,
        "declined_unanswerable": fmean(outcome.declined for outcome in gone) if gone else None,
        "invented": fmean(outcome.answered for outcome in gone) if gone else None,
        "declined_answerable": fmean(outcome.declined for outcome in there) if there else None,
    }
    for name, value in wanted.items():
        interval = getattr(result, name)
        assert (interval is None) == (value is None), name
        if interval is not None:
            assert interval.mean == pytest.approx(value), name
            assert interval.low is None or interval.low <= interval.mean <= interval.high
    assert (result.questions, result.unanswerable) == (len(rows), len(gone))


@given(st.lists(outcomes(), max_size=40), st.randoms(use_true_random=False))
def test_the_calibration_counts_every_answer_once_in_any_order(rows: list[QuestionOutcome], rng: random.Random) -> None:
    bins = calibration(rows)
    sure = [outcome for outcome in rows if outcome.confidence is not None and outcome.answered]
    assert len(bins) <= 10
    assert math.fsum(bucket.answers for bucket in bins) == pytest.approx(math.fsum(row.answered for row in sure))
    assert math.fsum(bucket.answers * bucket.right for bucket in bins) == pytest.approx(
        math.fsum(row.right for row in sure)
    )
    assert all(bucket.low <= bucket.confidence + 1e-12 and bucket.confidence <= bucket.high + 1e-12 for bucket in bins)
    assert all(below.high < above.low for below, above in pairwise(bins))
    error = abstention_of(rows).calibration_error
    assert error is None if not sure else error is not None and -1e-12 <= error <= 1 + 1e-12
    shuffled = calibration(rng.sample(rows, len(rows)))
    assert [(bucket.low, bucket.high) for bucket in shuffled] == [(bucket.low, bucket.high) for bucket in bins]
    assert [bucket.right for bucket in shuffled] == pytest.approx([bucket.right for bucket in bins])


def test_an_agent_that_is_right_as_often_as_it_is_sure_has_no_calibration_error() -> None:
    def rows(sure: float, right: int, wrong: int) -> list[QuestionOutcome]:
        return [QuestionOutcome(True, 1, 0, float(index < right), 1, sure) for index in range(right + wrong)]

    assert abstention_of([*rows(0.75, 3, 1), *rows(0.25, 1, 3)]).calibration_error == pytest.approx(0)
    assert abstention_of(rows(1.0, 1, 3)).calibration_error == pytest.approx(0.75)


def gone(ident: str) -> Question:
    return replace(QUESTION, id=ident, answers=(), meta={**QUESTION.meta, "unanswerable": True})


def run_of(question: Question, answer: str | None, seed: int = 0) -> Trajectory:
    """A run with an answer; without one it declines."""
    stop = StopReason.DECLINED if answer is None else None
    return run(search_of("x", ORBO), answer=answer, question=question, stop=stop, seed=seed)


def runs() -> list[Trajectory]:
    ids = ["a", "b", "c", "d"]
    there = [replace(QUESTION, id=ident) for ident in ids]
    answers: Sequence[str | None] = ("Velora", "Zun", None, "Velora")
    own = [run_of(question, answer) for question, answer in zip(there, answers, strict=True)]
    return [*own, run_of(gone("e"), None), run_of(gone("f"), "Velora"), run_of(gone("g"), NOT_FOUND)]


def test_a_table_worked_by_hand() -> None:
    scores = score_runs({"agent": runs()})
    agent = scores.abstention["agent"]
    means = {name: getattr(agent, name).mean for name in ("answered", "right_when_answered", "invented")}
    assert means == pytest.approx({"answered": 5 / 7, "right_when_answered": 2 / 5, "invented": 2 / 3})
    assert agent.declined_unanswerable is not None and agent.declined_unanswerable.mean == pytest.approx(1 / 3)
    assert agent.declined_answerable is not None and agent.declined_answerable.mean == pytest.approx(1 / 4)
    tokens = sum(each.agent_tokens for each in runs())
    assert agent.tokens_per_right is not None and agent.tokens_per_right.mean == pytest.approx(tokens / 2)
    tables = abstention_tables(scores)
    assert tables["Declining"].rows[0][:3] == ("agent", "7", "3")
    assert tables["Calibration"].rows == (("agent", "0.779–0.779", "5", "0.779", "0.400"),)
    assert "abstention" in scores_json(scores)


def test_em_and_f1_are_those_of_the_answerable_questions_alone() -> None:
    whole, there = score_runs({"agent": runs()}), score_runs({"agent": runs()[:4]})
    for metric in ("em", "f1", "cover_em"):
        assert whole.of("agent").metrics[metric] == there.of("agent").metrics[metric]
    assert whole.of("agent").metrics["em"].mean == 0.5  # the wrong decline counts as wrong


def test_a_wrong_decline_is_not_counted_as_an_answer() -> None:
    scores = score_trajectory(run_of(QUESTION, None))
    assert (scores["answered"], scores["declined"], scores["em"], "confidence" in scores) == (0, 1, 0, False)


def test_a_right_decline_is_shown_as_right_and_a_wrong_one_as_not() -> None:
    assert "right</b> · gold: unanswerable" in trajectory_html(run_of(gone("e"), None))
    for wrong in (run_of(gone("e"), "Velora"), run_of(QUESTION, None), run_of(gone("e"), NOT_FOUND)):
        assert "not right</b>" in trajectory_html(wrong)


def test_where_there_is_nothing_to_decline_tables_and_files_are_as_they_were() -> None:
    scores = score_runs({"agent": runs()[:2]})
    assert not scores.abstention and not abstention_tables(scores) and "abstention" not in scores_json(scores)


def test_a_twin_of_an_earlier_version_is_read_without_its_phrase_for_an_answer() -> None:
    row: JsonObject = {"id": "t", "question": "Who?", "answers": [NOT_FOUND], "meta": {"unanswerable": True}}
    twin = Question.from_json(row)
    assert (twin.answers, twin.answerable) == ((), False)
    assert "em" not in score_trajectory(run_of(twin, NOT_FOUND))
    assert Question.from_json({**row, "meta": {}}).answers == (NOT_FOUND,)  # a gold answer like any other


def test_an_agent_is_sure_of_its_answer_as_of_the_tokens_that_gave_it() -> None:
    sampled = run_of(QUESTION, "Velora")
    assert confidence(sampled) == pytest.approx(math.exp(-0.25))
    silent = [replace(segment, logprobs=(0.0,) * len(segment.logprobs)) for segment in sampled.segments]
    for unknown in (replace(sampled, exact=False), run_of(QUESTION, None), replace(sampled, segments=tuple(silent))):
        assert confidence(unknown) is None
