"""Fears about hybrids: half a result that looks whole, two ids for one passage, one id for two."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from coseek.core.errors import IndexMismatch, RetrieverError, SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.ranking import Scale, reciprocal_rank_fusion, scaled, top_rows
from coseek.retrieval.retriever import FixedRetriever, Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.cached import CachedRetriever
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings
from coseek.retrieval.retrievers.viewed import ViewedRetriever, ViewedSettings

CORPUS = Corpus(Passage(ident, ident.upper(), f"text of {ident}") for ident in "abcdef")


@dataclass
class Far:
    """A remote retriever: no local corpus, given scores, and optionally a fault."""

    found: list[tuple[Passage, float]]
    fault: str = ""
    name: str = "far"
    corpus: Corpus | None = None
    identity: str = "far"

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).question

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if self.fault:
            raise RetrieverError(self.fault)
        return [[Hit(*row) for row in self.found[:k]] for _ in queries]


def near(*idents: str, corpus: Corpus = CORPUS) -> FixedRetriever:
    return FixedRetriever(corpus, {"q": list(idents)})


def viewed(over: Retriever) -> Retriever:
    return ViewedRetriever(over, ViewedSettings(over="-", view="query"))


def hybrid(*parts: Retriever, **given: object) -> Hybrid:
    return Hybrid(parts, make_settings(HybridSettings, {"parts": ["-"] * max(2, len(parts)), **given}))


def ids(retriever: Retriever, k: int = 10) -> list[str]:
    return [hit.passage.id for hit in retriever.search(["q"], k)[0]]


def test_what_both_parts_find_comes_first_and_ties_keep_the_order_of_the_parts() -> None:
    assert ids(hybrid(near("a", "c"), near("b", "c"), method="rrf")) == ["c", "a", "b"]


def test_weights_move_a_part_to_the_front() -> None:
    assert ids(hybrid(near("a"), near("b"), weights=[1, 2])) == ["b", "a"]
    assert ids(hybrid(near("a", "c"), near("b", "c"), method="weighted", weights=[1, 2])) == ["b", "a", "c"]


MANY = Corpus(Passage(f"m{row}", "", f"The manual of pump {row}, its parts and its oil.") for row in range(150))
CODE = replace(MANY[149], id="code", text="Its number is QX7731.")
PUMPS = Corpus([*MANY, CODE])


@pytest.mark.parametrize("scale", ["z", "min-max"])
def test_a_passage_that_only_one_part_finds_is_not_buried_because_the_part_found_no_other(
    scale: str, tmp_path: Path
) -> None:
    bm25 = Bm25.over(PUMPS)
    vague = Far([(passage, 0.4 - 0.1 * (row / 150) ** 0.5) for row, passage in enumerate(MANY)], corpus=PUMPS)
    for lexical in (bm25, CachedRetriever(bm25, tmp_path / "lists"), viewed(bm25)):
        (hits,) = hybrid(lexical, vague, weights=[1, 1], scale=scale).search(["QX7731"], 5)
        assert hits[0].passage == CODE


def test_a_part_that_fails_fails_the_search_and_is_named() -> None:
    with pytest.raises(RetrieverError, match=r"part 2 of the hybrid \(far\) failed: it rains"):
        ids(hybrid(near("a"), Far([], fault="it rains")))


TEXTS = Corpus(
    Passage(f"p{row}", "", f"The {colour} {thing} of number {row} stands near the {place}.")
    for row, (colour, thing, place) in enumerate(
        product(("red", "green", "blue"), ("lamp", "bell", "clock"), ("river", "harbour", "market"))
    )
)


class Illiterate:
    """An index whose encoder cannot read the corpus: it returns the same hits for every query."""

    name, corpus, identity = "dense", TEXTS, "illiterate"

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).text

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        return [[Hit(passage, 1.0 / rank) for rank, passage in enumerate(TEXTS, start=1)][:k] for _ in queries]


def test_a_part_that_cannot_read_the_corpus_does_not_pull_the_fusion_down() -> None:
    bm25 = Bm25.over(TEXTS)
    fused, equal = hybrid(bm25, Illiterate()), hybrid(bm25, Illiterate(), weights=[1, 1])
    assert fused.weights == (1.0, 0.0) == hybrid(viewed(bm25), viewed(Illiterate())).weights
    queries = [f"{word} of number {row}" for row, word in enumerate(("lamp", "lamp", "lamp", "bell", "bell"))]
    alone = [[hit.passage.id for hit in hits] for hits in bm25.search(queries, 5)]
    assert [[hit.passage.id for hit in hits] for hits in fused.search(queries, 5)] == alone
    assert [[hit.passage.id for hit in hits] for hits in equal.search(queries, 5)] != alone
    assert fused.identity != equal.identity


def test_no_part_is_searched_a_hundred_times_that_may_cost_money() -> None:
    assert hybrid(near("a"), near("b")).weights == (1.0, 1.0)
    assert hybrid(Bm25.over(TEXTS), Far([])).weights == (1.0, 1.0)


def test_parts_over_different_corpora_are_refused() -> None:
    other = Corpus([Passage("a", "A", "another text")])
    with pytest.raises(IndexMismatch, match="different corpora"):
        hybrid(near("a"), near("a", corpus=other))


def test_passages_far_away_are_known_by_what_is_written_in_them() -> None:
    copy = replace(CORPUS[0], id="17", text="text  of\na ")
    assert [(hit.passage.id, hit.score) for hit in hybrid(near("a"), Far([(copy, 1.0)])).search(["q"], 3)[0]] == [
        ("a", 2.0)
    ]


def test_one_id_for_two_passages_is_a_fault() -> None:
    with pytest.raises(RetrieverError, match="the id 'a' for different passages"):
        ids(hybrid(near("a"), Far([(Passage("a", "Z", "something else"), 1.0)])))


def test_settings_and_parts_are_in_the_identity() -> None:
    kinds = [
        hybrid(near("a"), near("b")),
        hybrid(near("b"), near("a")),
        hybrid(near("a"), near("b"), smoothing=1),
        hybrid(near("a"), near("b"), weights=[1, 2]),
    ]
    assert len({kind.identity for kind in kinds}) == len(kinds)
    assert hybrid(near("a"), near("b")).identity == kinds[0].identity


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [-1.0, 2.0], [float("nan"), 1.0]])
def test_weights_that_make_no_sense_are_refused(weights: list[float]) -> None:
    with pytest.raises(SettingError, match="weights"):
        hybrid(near("a"), near("b"), weights=weights)


RANKING = st.lists(st.sampled_from("abcdef"), unique=True)


@given(st.lists(RANKING, min_size=2, max_size=4), st.sampled_from(["rrf", "weighted"]), st.integers(1, 6))
def test_hits_are_distinct_with_falling_scores_and_fewer_are_the_first_of_more(
    rankings: list[list[str]], method: str, k: int
) -> None:
    fused = hybrid(*(near(*ranking) for ranking in rankings), method=method)
    hits = fused.search(["q", "nothing", "q"], 6)
    assert hits[0] == hits[2]
    assert hits[1] == []
    assert {hit.passage.id for hit in hits[0]} == {ident for ranking in rankings for ident in ranking}
    scores = [hit.score for hit in hits[0]]
    assert scores == sorted(scores, reverse=True)
    assert ids(fused, k) == [hit.passage.id for hit in hits[0]][:k]


# --- scores of several rankings


def test_a_first_place_is_worth_one_and_ranks_are_smoothed() -> None:
    assert reciprocal_rank_fusion([["a", "b"]]) == {"a": 1.0, "b": 61 / 62}


SCORES = st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=8)


@given(SCORES, st.sampled_from(["min-max", "z"]))
def test_scaled_scores_begin_at_0_and_never_swap_two(scores: list[float], scale: Scale) -> None:
    values = scaled(scores, scale)
    assert min(values) == (0.0 if max(scores) / 2 > min(scores) / 2 else 1.0)
    order = sorted(range(len(scores)), key=scores.__getitem__)
    assert all(values[low] <= values[high] for low, high in pairwise(order))


def test_min_max_puts_the_best_at_1_and_z_measures_in_standard_deviations() -> None:
    assert scaled([1.0, 3.0, 2.0], "min-max") == [0.0, 1.0, 0.5]
    assert scaled([1.0, 3.0, 2.0], "z") == pytest.approx([0.0, 2 / (2 / 3) ** 0.5, 1 / (2 / 3) ** 0.5])
    assert scaled([1e-300, 2e-300], "z") == [0.0, 2.0]


def test_one_hit_and_equal_scores_count_as_found() -> None:
    assert scaled([7.0], "min-max") == scaled([7.0], "z") == [1.0]
    assert scaled([5e-324, 5e-324], "z") == [1.0, 1.0]
    assert scaled([], "z") == []


def test_a_short_ranking_counts_as_one_over_all_places() -> None:
    (alone,) = scaled([14.0], "z", max_hits=100, absent=0.0)
    assert round(alone, 3) == 10.05  # 14 over 14 · √(.01 · .99)
    assert scaled([3.0, 1.0], "min-max", max_hits=4, absent=0.0) == [1.0, 1 / 3]
    assert scaled([3.0, 1.0], "z", max_hits=4) == scaled([3.0, 1.0], "z")  # its other scores are unknown
    assert scaled([3.0, 1.0], "z", max_hits=2, absent=0.0) == scaled([3.0, 1.0], "z")


# --- the best rows


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 40))
def test_the_best_rows_come_first_and_equal_scores_keep_row_order(scores: list[int], k: int) -> None:
    array = np.array(scores, dtype=np.float32)
    expected = sorted(range(len(scores)), key=lambda row: -scores[row])
    assert top_rows(array, k).tolist() == expected[:k]
    assert top_rows(array, k, above=0.0).tolist() == [row for row in expected if scores[row] > 0][:k]
