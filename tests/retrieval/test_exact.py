import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples_drawn import at_most
from tests.retrieval.brute import (
    batch_case,
    brute_force,
    check_batches,
    check_ranking,
    copies,
    denormals,
    hard_cases,
    large_case,
    mixed_norms,
    near_ties,
    unit_rows,
)
from tests.this_process import ThisProcess

from coseek.core.errors import RetrieverError
from coseek.retrieval.vectors.exact import ClusterSearch, ExactSearch, ShardedSearch, product_error
from coseek.retrieval.vectors.shortlist import peaks_of, reaching, reaching_on_device, score_error, scores_of
from coseek.retrieval.vectors.store import VectorStore, VectorWriter

Case = tuple[NDArray[np.float32], NDArray[np.float32], int]


@settings(max_examples=at_most(40))
@given(hard_cases(), st.sampled_from([33, 100]), st.sampled_from([3, 20]))
def test_what_is_found_is_the_float64_ranking_to_the_last_id(case: Case, block_rows: int, together: int) -> None:
    vectors, queries, k = case
    search = ExactSearch(VectorStore.of(vectors), block_rows=block_rows, queries_per_tile=together)
    check_ranking(search.search(queries, k), vectors, queries, k)


@settings(max_examples=at_most(40))
@given(hard_cases())
def test_it_is_the_same_without_torch(case: Case) -> None:
    vectors, queries, k = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        search = ExactSearch(VectorStore.of(vectors))
        assert np.array_equal(search.search(queries, k)[0], brute_force(vectors, queries, k))


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 10, 100])
def test_a_hundred_thousand_vectors_are_ranked_as_brute_force_ranks_them(k: int) -> None:
    vectors, queries = large_case(k)
    found = ExactSearch(VectorStore.of(vectors)).find(queries, k)
    assert np.array_equal(found.rows_QK, brute_force(vectors, queries, k))
    assert found.rescored_Q.max() < 2 * k + 50


def test_a_query_finds_the_same_in_every_batch_to_the_last_bit() -> None:
    vectors, queries = batch_case()
    check_batches(ExactSearch(VectorStore.of(vectors)), queries)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_is_refused(bad: float) -> None:
    queries = np.ones((4, 8), dtype=np.float32)
    queries[2, 5] = bad
    with pytest.raises(RetrieverError, match="query 2"):
        ExactSearch(VectorStore.of(np.ones((5, 8), dtype=np.float32))).search(queries, 3)


@settings(max_examples=at_most(40))
@given(hard_cases())
def test_a_float32_product_is_never_further_off_than_its_bound(case: Case) -> None:
    vectors, queries, _ = case
    dim = vectors.shape[1]
    wide, wide_queries = vectors.astype(np.float64), queries.astype(np.float64)
    norms_NQ = np.linalg.norm(wide, axis=1)[:, None] * np.linalg.norm(wide_queries, axis=1)
    with np.errstate(all="ignore"):
        product = (vectors @ queries.T).astype(np.float64)
    true_NQ = np.stack([scores_of(vectors, np.tile(query, (len(vectors), 1))) for query in queries], axis=1)
    bound_NQ = norms_NQ * (product_error(dim) + score_error(dim)) + 4 * dim * 2.0**-126
    inside = (norms_NQ < 1e37) & (np.abs(wide_queries).max(axis=1) < 2)
    assert (np.abs(product - true_NQ) <= bound_NQ)[inside].all()


def test_bounds_are_wider_where_torch_may_multiply_in_less_than_float32() -> None:
    vectors = unit_rows(np.random.default_rng(4), 5_000, 96)
    torch.set_float32_matmul_precision("medium")
    try:
        rows, _ = ExactSearch(VectorStore.of(vectors)).search(vectors[:30], 10)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert np.array_equal(rows, brute_force(vectors, vectors[:30], 10))


@settings(max_examples=at_most(40))
@given(hard_cases())
def test_the_score_of_a_pair_does_not_depend_on_what_is_scored_beside_it(case: Case) -> None:
    vectors, queries, _ = case
    together = scores_of(vectors, np.broadcast_to(queries[0], vectors.shape))
    alone = [scores_of(vectors[row : row + 1], queries[:1])[0] for row in range(len(vectors))]
    assert together.tobytes() == np.array(alone).tobytes()


@settings(max_examples=at_most(40))
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 12))
def test_a_device_picks_the_same_pairs_as_numpy(seed: int, groups: int, queries: int) -> None:
    rng = np.random.default_rng(seed)
    product = rng.integers(-9, 10, (groups * 16, queries)).astype(np.float32)
    limits = rng.integers(-9, 12, queries).astype(np.float64)
    limits[rng.random(queries) < 0.2] = -np.inf
    tensor = torch.from_numpy(product)
    peaks = peaks_of(tensor)
    assert isinstance(peaks, torch.Tensor)
    ours, theirs = reaching(product, peaks_of(product), limits), reaching_on_device(tensor, peaks, limits)
    expected = {(row, query) for row, query in np.argwhere(product >= limits).tolist()}
    for places, numbers, values in (ours, theirs):
        assert set(zip(places.tolist(), numbers.tolist(), strict=True)) == expected
        assert np.array_equal(values, product[places, numbers])


@pytest.mark.parametrize("maker", [copies, mixed_norms, denormals])
def test_many_rows_of_hard_kinds_are_ranked_right(maker: object) -> None:
    """More rows than wait for the first floor."""
    assert callable(maker)
    rng = np.random.default_rng(5)
    vectors, queries = maker(rng, 80_000, 6), unit_rows(rng, 2, 6)
    rows, _ = ExactSearch(VectorStore.of(vectors)).search(queries, 40)
    assert np.array_equal(rows, brute_force(vectors, queries, 40))


@settings(max_examples=at_most(40), deadline=None)
@given(hard_cases(), st.integers(1, 5), st.sampled_from([1, 3]))
def test_parts_on_several_devices_find_what_one_search_finds_to_the_last_id(case: Case, parts: int, tiles: int) -> None:
    vectors, queries, k = case
    store = VectorStore.of(vectors)
    whole = ExactSearch(store, block_rows=33, queries_per_tile=2, tiles=tiles).find(queries, k)
    parted = ShardedSearch.over(store, ["cpu"] * parts, block_rows=33).find(queries, k)
    assert np.array_equal(whole.rows_QK, brute_force(vectors, queries, k))
    assert np.array_equal(parted.rows_QK, whole.rows_QK)
    assert parted.scores_QK.tobytes() == whole.scores_QK.tobytes()


@pytest.mark.parametrize("maker", [copies, near_ties, mixed_norms])
def test_ties_across_parts_keep_the_order_of_the_rows(tmp_path: Path, maker: object) -> None:
    assert callable(maker)
    rng = np.random.default_rng(6)
    vectors, queries = maker(rng, 70_000, 6), unit_rows(rng, 3, 6)
    queries[1], queries[2] = vectors[69_999], 0
    vectors[[5, 35_000, 69_998]] = vectors[69_999]
    writer = VectorWriter(tmp_path, 70_000, 6, shard_rows=9_000)
    writer.append(vectors)
    store, wanted = writer.finish(), brute_force(vectors, queries, 40)
    rows, scores = ShardedSearch.over(store, ["cpu"] * 4, block_rows=1_000).search(queries, 40)
    assert np.array_equal(rows, wanted)
    rows, there = ClusterSearch(ThisProcess(nodes=4), store, "cpu", block_rows=1_000).search(queries, 40)
    assert np.array_equal(rows, wanted) and there.tobytes() == scores.tobytes()
