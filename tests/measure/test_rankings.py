import math

import ir_measures
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, R, nDCG

from coseek.core.errors import UnknownName
from coseek.data.trec import trec_order
from coseek.measure import rankings
from coseek.measure.rankings import FAMILIES, JudgedRanking, Metric

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
    found = ir_measures.iter_calc(measures, judged, rows)
    return {(metric.query_id, str(metric.measure)): metric.value for metric in found}


@given(QRELS, RUNS)
def test_every_number_is_that_of_ir_measures(
    qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]
) -> None:
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


@given(ids, ids, st.none() | st.integers(1, 9))
def test_scores_lie_between_nought_and_one(gold: list[str], ranked: list[str], k: int | None) -> None:
    for value in (
        rankings.recall(gold, ranked, k),
        rankings.ndcg(gold, ranked, k),
        rankings.reciprocal_rank(gold, ranked, k),
    ):
        assert (value is None) == (not gold)
        assert value is None or 0 <= value <= 1
    assert rankings.all_gold(gold, ranked, k) == (None if not gold else rankings.recall(gold, ranked, k) == 1)


def test_ids_alone_are_all_of_grade_one() -> None:
    assert rankings.ndcg(("a", "b"), ["x", "a", "b"], 3) == rankings.ndcg({"a": 1, "b": 1, "x": 0}, ["x", "a", "b"], 3)
    assert rankings.ndcg(("a", "b"), ["x", "a", "b"], 3) == pytest.approx(
        (1 / math.log2(3) + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    )
    assert rankings.reciprocal_rank(("a", "b"), ["x", "b", "a"]) == 0.5


def test_a_gain_is_the_grade_or_grows_with_its_power() -> None:
    graded = {"a": 3, "b": 1}
    assert rankings.ndcg(graded, ["b", "a"], 2) == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))
    assert rankings.ndcg(graded, ["b", "a"], 2, "exponential") == pytest.approx(
        (1 + 7 / math.log2(3)) / (7 + 1 / math.log2(3))
    )


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


@pytest.mark.parametrize("name", ["", "recal@5", "recall@0", "recall@", "recall@-1", "Recall@5", "ndcg@5 "])
def test_a_misspelt_metric_is_refused(name: str) -> None:
    with pytest.raises(UnknownName, match="no metric named"):
        Metric.named(name)


def test_where_only_ids_are_known_there_is_no_answer_hit() -> None:
    assert Metric.named("answer_hit@5").of(JudgedRanking({}, ("one",), ("a",), None)) is None
