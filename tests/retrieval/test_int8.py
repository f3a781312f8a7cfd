import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples_drawn import at_most
from tests.retrieval.brute import (
    batch_case,
    brute_force,
    check_batches,
    check_ranking,
    hard_cases,
    near_ties,
    outliers,
    unit_rows,
)

import coseek.retrieval.vectors.int8 as int8
from coseek.core.errors import DataError, IndexMismatch
from coseek.retrieval.vectors.exact import ExactSearch
from coseek.retrieval.vectors.int8 import Int8Search, encode, largest_query_code, quantise
from coseek.retrieval.vectors.shortlist import scores_of
from coseek.retrieval.vectors.store import VectorStore, VectorWriter

Case = tuple[NDArray[np.float32], NDArray[np.float32], int]


def int8_search(store: VectorStore, folder: Path, together: int = 64) -> Int8Search:
    quantise(store, folder / "int8")
    return Int8Search(store, folder / "int8", together)


@pytest.mark.slow
@settings(max_examples=at_most(40))
@given(hard_cases(), st.sampled_from([3, 20]), st.sampled_from([32, 96]), st.sampled_from([2, 3]))
def test_what_is_found_is_the_float64_ranking_to_the_last_id(
    tmp_path_factory: pytest.TempPathFactory, case: Case, together: int, block: int, stretch: int
) -> None:
    vectors, queries, k = case
    with pytest.MonkeyPatch.context() as patch:  # small blocks, so that a small store has many
        patch.setattr(int8, "BLOCK", block)
        patch.setattr(int8, "SORT_ROWS", stretch * block)
        patch.setattr(int8, "PRODUCT_ROWS", 2 * block)
        search = int8_search(VectorStore.of(vectors), tmp_path_factory.mktemp("int8"), together)
        check_ranking(search.search(queries, k), vectors, queries, k)


@settings(max_examples=at_most(40))
@given(hard_cases())
def test_the_bound_is_never_passed(case: Case) -> None:
    vectors, queries, _ = case
    codes_ND, (lost_N, kept_N), scale = encode(vectors)
    assert np.abs(codes_ND).max() <= 127
    for query in queries[queries.any(axis=1)]:
        wide = query.astype(np.float64)
        step = np.abs(wide).max() / 127
        codes = np.rint(wide / step)
        approximate = scale * step * (codes_ND.astype(np.float64) @ codes)
        bound = lost_N * np.linalg.norm(wide) + kept_N * np.linalg.norm(wide - codes * step)
        true = scores_of(vectors, np.broadcast_to(query, vectors.shape))
        assert (np.abs(true - approximate) <= bound * (1 + 1e-9) + np.abs(approximate) * 1e-15).all()


def test_it_finds_the_very_bytes_of_the_float_search(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for vectors in (unit_rows(rng, 2_000, 33), near_ties(rng, 2_000, 33), outliers(rng, 2_000, 33)):
        store = VectorStore.of(vectors)
        ours, theirs = int8_search(store, tmp_path).search(vectors[:9], 20), ExactSearch(store).search(vectors[:9], 20)
        assert [part.tobytes() for part in ours] == [part.tobytes() for part in theirs]


def test_a_query_finds_the_same_in_every_batch_to_the_last_bit(tmp_path: Path) -> None:
    vectors, queries = batch_case()
    check_batches(int8_search(VectorStore.of(vectors), tmp_path), queries)


def test_integers_without_torch_are_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for dim in (30, 1_100):  # the sums of 1,100 products are too large for float32
        vectors, queries = unit_rows(rng, 500, dim), unit_rows(rng, 5, dim)
        search = int8_search(VectorStore.of(vectors), tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "torch", None)
            largest_query_code.cache_clear()
            rows, _ = search.search(queries, 20)
        largest_query_code.cache_clear()
        assert np.array_equal(rows, brute_force(vectors, queries, 20))


def test_float16_vectors_in_shards_are_ranked_by_their_stored_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    vectors, queries = unit_rows(rng, 1_000, 20), unit_rows(rng, 9, 20)
    writer = VectorWriter(tmp_path / "vectors", 1_000, 20, "float16", shard_rows=130)
    writer.append(vectors)
    rows, _ = int8_search(writer.finish(), tmp_path).search(queries, 30)
    assert np.array_equal(rows, brute_force(vectors.astype(np.float16), queries, 30))


def test_a_copy_of_other_vectors_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    vectors = unit_rows(rng, 100, 8)
    quantise(VectorStore.of(vectors), tmp_path / "int8")
    with pytest.raises(IndexMismatch, match="other vectors"):
        Int8Search(VectorStore.of(unit_rows(rng, 100, 8)), tmp_path / "int8")
    (tmp_path / "int8" / "codes.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"codes\.npy"):
        Int8Search(VectorStore.of(vectors), tmp_path / "int8")
