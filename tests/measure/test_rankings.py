from pathlib import Path

import ir_measures
import pytest
from hypothesis import given, strategies as st
from ir_measures import RR, R, nDCG
from tests.scripted import Failing

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trec import read_run, trec_order, write_qrels, write_run
from coseek.measure import rankings
from coseek.measure.rankings import FAMILIES, JudgedRanking, Metric, metrics_within
from coseek.measure.score import Scores
from coseek.measure.searched import (
    EMPTY,
    FAULT,
    FOUND,
    Answered,
    RetrievalMeasure,
    SearchedQuestion,
    of_run_file,
    relevance,
    search_questions,
)
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import FixedRetriever

IDS = st.sampled_from(["a", "b", "c", "d", "B", "é", "a1", "10", "9", "z"])
QUERIES = ("q1", "q2", "q3")
QRELS = st.dictionaries(st.sampled_from(QUERIES), st.dictionaries(IDS, st.integers(-1, 3), min_size=1), min_size=1)
SCORES = st.sampled_from([0.0, 1.0, 1.0 + 1e-12, 2.0, -3.5, 0.1]) | st.floats(-10, 10, width=32)
RUNS = st.dictionaries(st.sampled_from(QUERIES), st.dictionaries(IDS, SCORES))
ids = st.lists(st.sampled_from("abcdefgh"), max_size=8)
CUTS = (1, 2, 3, 5, 20)
EXPONENTIAL = {grade: 2**grade - 1 for grade in range(4)}


def theirs(
    qrels: dict[str, dict[str, int]], rows: list[ir_measures.ScoredDoc], *measures: ir_measures.measures.Measure
) -> dict[tuple[str, str], float]:
    judged = [ir_measures.Qrel(query, doc, max(grade, 0)) for query in qrels for doc, grade in qrels[query].items()]
    values = ir_measures.iter_calc(measures, judged, rows)
    return {(metric.query_id, str(metric.measure)): metric.value for metric in values}


@given(QRELS, RUNS)
def test_each_number_is_that_of_ir_measures(qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]) -> None:
    """Ties, graded and negative relevance, questions that the run lacks, and questions without relevant passages."""
    rows = [ir_measures.ScoredDoc(query, doc, score) for query in run for doc, score in run[query].items()]
    expected = theirs(qrels, rows, RR, nDCG, *(measure for k in CUTS for measure in (R @ k, nDCG @ k)))
    # Asked for by themselves: ir-measures 0.4.3 mixes up nDCG with and without gains of its own in one call.
    expected |= theirs(qrels, rows, *(nDCG(gains=EXPONENTIAL) @ k for k in CUTS))
    for query, gold in qrels.items():
        ranked = [ident for ident, _ in trec_order(run.get(query, {}).items())]
        relevant = any(grade > 0 for grade in gold.values())

        def same(ours: float | None, measure: ir_measures.measures.Measure) -> bool:
            their = expected[query, str(measure)]  # noqa: B023 (called in this turn of the loop)
            return ours == pytest.approx(their, abs=1e-9) if relevant else (ours, their) == (None, 0)  # noqa: B023

        assert same(rankings.reciprocal_rank(gold, ranked), RR)
        assert same(rankings.ndcg(gold, ranked), nDCG)
        for k in CUTS:
            assert same(rankings.recall(gold, ranked, k), R @ k)
            assert same(rankings.ndcg(gold, ranked, k), nDCG @ k)
            assert same(rankings.ndcg(gold, ranked, k, "exponential"), nDCG(gains=EXPONENTIAL) @ k)
            assert rankings.all_gold(gold, ranked, k) == (expected[query, str(R @ k)] == 1 if relevant else None)


@given(st.dictionaries(IDS, st.integers(1, 3), min_size=1), st.lists(IDS, max_size=12))
def test_a_passage_that_stands_twice_counts_where_it_stands_first(gold: dict[str, int], ranked: list[str]) -> None:
    # Worst first: ir-measures keeps the last score that it is told for a passage, hence the best.
    rows = [ir_measures.ScoredDoc("q", doc, -float(rank)) for rank, doc in enumerate(ranked)][::-1]
    expected = theirs({"q": gold}, rows, R @ 3, RR @ 3, nDCG @ 3)
    assert rankings.recall(gold, ranked, 3) == pytest.approx(expected["q", "R@3"])
    assert rankings.reciprocal_rank(gold, ranked, 3) == pytest.approx(expected["q", "RR@3"])
    assert rankings.ndcg(gold, ranked, 3) == pytest.approx(expected["q", "nDCG@3"])


def test_ids_alone_are_all_of_grade_one() -> None:
    assert rankings.ndcg(("a", "b"), ["x", "a", "b"], 3) == rankings.ndcg({"a": 1, "b": 1, "x": 0}, ["x", "a", "b"], 3)
    assert rankings.reciprocal_rank(("a", "b"), ["x", "b", "a"]) == 0.5


def test_no_answer_is_put_together_from_two_texts() -> None:
    assert rankings.answer_hit(("New York",), ["It is new", "York is old"]) is False
    assert rankings.answer_hit(("New York",), ["x", "in new york."]) is True
    assert rankings.answer_hit(("New York",), ["x", "in new york."], 1) is False
    assert rankings.answer_hit((), ["x"]) is None


@pytest.mark.parametrize("name", [*FAMILIES, *(f"{family}@3" for family in FAMILIES)])
def test_every_metric_is_found_by_its_name(name: str) -> None:
    judged = JudgedRanking({"a": 2}, ("one",), ("x", "a"), ("two", "one"))
    value = Metric.named(name).of(judged)
    assert isinstance(value, float)
    assert 0 < value <= 1


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("recal@5", "recall@5"), ("recal", "recall@10"), ("ndgc@3", "ndcg@3"), ("recall@0", "recall@10")]
    + [("recall@", ""), ("recall@-1", ""), ("Recall@5", ""), ("ndcg@5 ", ""), ("", "")],
)
def test_a_misspelt_metric_is_refused_and_corrected_with_its_own_cut(name: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"no metric named.*{nearest and f'did you mean {nearest!r}'}"):
        Metric.named(name)


def test_where_only_ids_are_known_there_is_no_answer_hit() -> None:
    assert Metric.named("answer_hit@5").of(JudgedRanking({}, ("one",), ("a",), None)) is None


# --- questions that a retriever is asked


CORPUS = Corpus([Passage(ident, ident, f"text of {ident}") for ident in ("Ada L", "bob", "cat", "dog")])
QUESTIONS = [
    Question("q 1", "one?", ("of bob",), ("Ada L", "bob"), 2),
    Question("q2", "two?", ("cat",), ("cat",), 1),
    Question("q3", "three?", (), ("dog",), 1),
    Question("q4", "four?", ("none",)),
]
FOUND_BY_ONE = {"one?": ["bob", "Ada L"], "two?": ["dog", "bob", "cat"], "four?": ["cat"]}


def results(*refused: str, batch: int = 64) -> list[Answered]:
    retriever = Failing(FixedRetriever(CORPUS, FOUND_BY_ONE), lambda query: query.text in refused)
    return [answer for answers in search_questions(retriever, QUESTIONS, 3, batch) for answer in answers]


def measuring(*metrics: str) -> RetrievalMeasure:
    return RetrievalMeasure(tuple(Metric.named(name) for name in metrics))


def means(scores: Scores, run: str) -> dict[str, float]:
    return {name: interval.mean for name, interval in scores.of(run).metrics.items()}


def test_every_question_is_asked_once_and_measured() -> None:
    plan = measuring("recall@2", "mrr", "answer_hit@1")
    run = plan.measure("one", results())
    assert dict(run.stops) == {FOUND: 3, EMPTY: 1}
    assert run.questions["q 1"].metrics == {"recall@2": 1, "mrr": 1, "answer_hit@1": 1}
    assert run.questions["q2"].metrics == {"recall@2": 0, "mrr": 1 / 3, "answer_hit@1": 0}
    assert run.questions["q3"].metrics == {"recall@2": 0, "mrr": 0}  # no answers: no answer_hit
    assert run.questions["q4"].metrics == {"answer_hit@1": 0}  # nothing relevant: no recall
    assert plan.unjudged(QUESTIONS) == 1


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_a_failed_search_takes_no_other_along_and_is_in_no_mean(batch: int) -> None:
    plan = measuring("recall@2")
    run = plan.measure("moody", results("one?", batch=batch))
    assert dict(run.stops) == {FOUND: 2, EMPTY: 1, FAULT: 1}
    assert [search.fault for _, search in results("one?", batch=batch)] == ["the disk is gone", None, None, None]
    scores = plan.compare([plan.measure("whole", results()), run], QUESTIONS)
    assert (means(scores, "whole"), means(scores, "moody")) == ({"recall@2": 1 / 3}, {"recall@2": 0})
    pair = scores.comparisons[0].metrics["recall@2"]
    assert (pair.difference.n, pair.difference.mean, pair.only_a) == (2, 0, 1)


def test_a_retriever_sees_the_question_as_the_first_search_of_an_agent() -> None:
    listening = Failing(FixedRetriever(CORPUS, {}), lambda query: False)
    list(search_questions(listening, QUESTIONS[:1], 3))
    assert listening.asked == [Query("one?", question="one?")]


def test_a_passage_that_is_given_twice_stands_once() -> None:
    hits = [Hit(CORPUS[0], 2.0), Hit(CORPUS[1], 1.0), Hit(CORPUS[0], 2.0)]
    assert SearchedQuestion.of(QUESTIONS[0], hits, 3).ranked == [("Ada L", 2.0), ("bob", 1.0)]


def test_a_run_file_gives_the_numbers_of_the_search_it_was_written_from(tmp_path: Path) -> None:
    plan = measuring("recall@2", "ndcg", "answer_hit@1")
    write_run(tmp_path / "one.run", {question.id: search.ranked for question, search in results()}, "one")
    ranked = read_run(tmp_path / "one.run")
    direct, read = (plan.measure("one", rows) for rows in (results(), of_run_file(ranked, QUESTIONS, CORPUS)))
    assert (read.questions, read.stops) == (direct.questions, direct.stops)


def test_ir_measures_reads_what_is_written_and_finds_the_same(tmp_path: Path) -> None:
    """Equal scores, a blank in an id, and a question without any passage are in it."""
    plan = measuring("recall@2", "ndcg@3", "mrr")
    tied = [(question, SearchedQuestion(search.ids, (1.0,) * len(search.ids))) for question, search in results()[:3]]
    write_run(tmp_path / "one.run", {question.id: search.ranked for question, search in tied}, "one")
    write_qrels(tmp_path / "qrels", {question.id: plan.gold(question) for question, _ in tied})
    run, qrels = (str(tmp_path / name) for name in ("one.run", "qrels"))
    judged = ir_measures.read_trec_qrels(qrels)  # type: ignore[no-untyped-call]
    ranked = ir_measures.read_trec_run(run)  # type: ignore[no-untyped-call]
    theirs = ir_measures.calc_aggregate([R @ 2, nDCG @ 3, RR], judged, ranked)
    ours = means(plan.compare([plan.measure("one", tied)], QUESTIONS[:3]), "one")
    assert ours == pytest.approx({"recall@2": theirs[R @ 2], "ndcg@3": theirs[nDCG @ 3], "mrr": theirs[RR]})


def test_a_question_that_a_run_file_lacks_found_nothing_or_was_not_asked() -> None:
    ranked = {"q2": [("cat", 1.0)]}
    counted = measuring("recall@2").measure("x", of_run_file(ranked, QUESTIONS[:3]))
    assert [row.metrics["recall@2"] for row in counted.questions.values()] == [0, 1, 0]
    left_out = measuring("recall@2").measure("x", of_run_file(ranked, QUESTIONS[:3], missing_is_empty=False))
    assert {ident: row.metrics for ident, row in left_out.questions.items()} == {"q2": {"recall@2": 1}}
    with pytest.raises(DataError, match="none of the questions"):
        list(of_run_file({"q9": []}, QUESTIONS))


def test_a_run_file_is_read_to_the_depth_of_the_searches() -> None:
    ranked = {"q2": [("cat", 1.0), ("elsewhere", 0.5), ("bob", 0.2)]}
    ((_, searched),) = of_run_file(ranked, QUESTIONS[1:2], depth=2)
    assert searched.ids == ("cat", "elsewhere")


def test_without_the_passages_a_run_file_has_no_answer_hit() -> None:
    ((_, searched),) = of_run_file({"q2": [("cat", 1.0), ("elsewhere", 0.5)]}, QUESTIONS[1:2], CORPUS)
    assert searched.passages is None
    assert measuring("answer_hit@2", "mrr").judge(QUESTIONS[1], searched) == {"mrr": 1}
    bare = [searched.passages for _, searched in of_run_file({"q2": [("cat", 1.0)]}, QUESTIONS)]
    assert bare == [None] * len(QUESTIONS)


def test_grades_come_from_qrels_then_from_the_data_set_then_from_gold_passages() -> None:
    graded = Question("q5", "?", gold_ids=("cat",), meta={"relevance": {"cat": 2, "my dog": 1, "bob": 0}})
    assert relevance(graded) == {"cat": 2, "my dog": 1, "bob": 0}
    assert relevance(QUESTIONS[0]) == {"Ada L": 1, "bob": 1}
    assert measuring("mrr").gold(graded) == {"cat": 2, "my%20dog": 1, "bob": 0}
    assert RetrievalMeasure((), {"q5": {"bob": 3}}).gold(graded) == {"bob": 3}
    assert RetrievalMeasure((), {"q6": {"bob": 3}}).gold(graded) == {}
    with pytest.raises(DataError, match=r"'q5': meta\.relevance"):
        relevance(Question("q5", "?", meta={"relevance": {"cat": "high"}}))


def test_a_metric_that_reads_deeper_than_the_search_is_refused() -> None:
    assert [metric.name for metric in metrics_within(5, ["recall@5", "mrr", "recall@5"])] == ["recall@5", "mrr"]
    with pytest.raises(SettingError, match="recall@6 reads 6 passages, and --depth is 5"):
        metrics_within(5, ["recall@6"])
    with pytest.raises(SettingError, match="no metric is named"):
        metrics_within(5, [])
