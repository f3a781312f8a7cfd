"""Vectors: searches rank like float64, and the store returns what was written."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples_drawn import at_most
from tests.hardware.paces import SLOW, kept
from tests.retrieval.brute import (
    brute_force,
    check_ranking,
    copies,
    denormals,
    hard_cases,
    mixed_norms,
    near_ties,
    unit_rows,
)
from tests.retrieval.tiny_encoder import make_encoder, sentences
from tests.this_process import ThisProcess

from coseek.core.errors import DataError, IndexMismatch
from coseek.hardware.device import memory_bytes
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retrievers.dense import CODES, Dense
from coseek.retrieval.vectors import exact, int8
from coseek.retrieval.vectors.exact import (
    MIN_ROWS,
    ClusterSearch,
    ExactSearch,
    ShardedSearch,
    choose_method,
    fastest_method,
    product_error,
)
from coseek.retrieval.vectors.int8 import Int8Search, encode, quantise
from coseek.retrieval.vectors.shortlist import peaks_of, reaching, reaching_on_device, score_error, scores_of
from coseek.retrieval.vectors.store import FloatName, VectorStore, VectorWriter

Case = tuple[NDArray[np.float32], NDArray[np.float32], int]


def int8_search(store: VectorStore, folder: Path, together: int = 64) -> Int8Search:
    quantise(store, folder / "int8")
    return Int8Search(store, folder / "int8", together)


@settings(max_examples=at_most(40))
@given(hard_cases(), st.sampled_from([33, 100]), st.sampled_from([3, 20]))
def test_what_is_found_is_the_float64_ranking_to_the_last_id(case: Case, block_rows: int, together: int) -> None:
    vectors, queries, k = case
    search = ExactSearch(VectorStore.of(vectors), block_rows=block_rows, queries_per_tile=together)
    check_ranking(search.search(queries, k), vectors, queries, k)


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
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 12))
def test_a_device_picks_the_same_pairs_as_numpy(seed: int, groups: int, queries: int) -> None:
    rng = np.random.default_rng(seed)
    product = rng.integers(-9, 10, (groups * 16, queries)).astype(np.float32)
    limits = rng.integers(-9, 12, queries).astype(np.float64)
    limits[rng.random(queries) < 0.2] = -np.inf
    tensor = torch.from_numpy(product)
    peaks = peaks_of(tensor)
    ours, theirs = reaching(tensor, peaks, limits), reaching_on_device(tensor, peaks, limits)
    expected = {(row, query) for row, query in np.argwhere(product >= limits).tolist()}
    for places, numbers, values in (ours, theirs):
        assert set(zip(places.tolist(), numbers.tolist(), strict=True)) == expected
        assert np.array_equal(values, product[places, numbers])


@pytest.mark.parametrize("maker", [copies, mixed_norms, denormals])
def test_many_rows_of_hard_kinds_are_ranked_right(maker: object) -> None:
    """More rows than are buffered before the first floor."""
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
    for search in (
        ExactSearch(store, block_rows=33, queries_per_tile=2, tiles=tiles),
        ShardedSearch(store, ["cpu"] * parts, block_rows=33),
    ):
        check_ranking(search.search(queries, k), vectors, queries, k)


@pytest.mark.medium
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
    rows, scores = ShardedSearch(store, ["cpu"] * 4, block_rows=1_000).search(queries, 40)
    assert np.array_equal(rows, wanted)
    rows, there = ClusterSearch(ThisProcess(nodes=4), store, "cpu", block_rows=1_000).search(queries, 40)
    assert np.array_equal(rows, wanted) and there.tobytes() == scores.tobytes()


# --- int8


@pytest.mark.slow
@settings(max_examples=at_most(40))
@given(hard_cases(), st.sampled_from([3, 20]), st.sampled_from([32, 96]), st.sampled_from([2, 3]))
def test_what_int8_finds_is_the_float64_ranking_to_the_last_id(
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
def test_the_bound_of_int8_is_never_passed(case: Case) -> None:
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


def test_a_processor_without_exact_integer_products_finds_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for dim in (30, 1_100):  # the sums of 1,100 products are too large for float32
        vectors, queries = unit_rows(rng, 500, dim), unit_rows(rng, 5, dim)
        search = int8_search(VectorStore.of(vectors), tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(int8, "largest_query_code", lambda: 0)
            rows, _ = search.search(queries, 20)
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


# --- the store


ROWS, DIM, SHARD = 25, 3, 10
VECTORS_ND = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)


def write(folder: Path, sizes: list[int], dtype: FloatName = "float32") -> VectorStore:
    """Write all rows in pieces, each by a new writer, as if the previous one had been killed."""
    for size in sizes:
        writer = VectorWriter(folder, ROWS, DIM, dtype, SHARD)
        writer.append(VECTORS_ND[writer.written : writer.written + size])
    return VectorWriter(folder, ROWS, DIM, dtype, SHARD).finish()


def test_what_was_written_is_read_back_across_shards(tmp_path: Path) -> None:
    store = write(tmp_path, [7, 7, 7, 4])
    rows = np.array([24, 0, 10, 9, 10])
    assert (len(store), store.dim, store.dtype) == (ROWS, DIM, "float32")
    assert np.array_equal(store.gather(rows), VECTORS_ND[rows])
    assert np.allclose(store.norms_N, np.linalg.norm(VECTORS_ND.astype(np.float64), axis=1), rtol=1e-15)


def test_an_unfinished_store_is_not_opened(tmp_path: Path) -> None:
    writer = VectorWriter(tmp_path, ROWS, DIM)
    writer.append(VECTORS_ND[:5])
    with pytest.raises(DataError, match="not complete"):
        VectorStore.open(tmp_path)
    with pytest.raises(DataError, match="5 of 25"):
        writer.finish()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_with_its_row(tmp_path: Path, bad: float) -> None:
    vectors = VECTORS_ND.copy()
    vectors[17, 1] = bad
    writer = VectorWriter(tmp_path, ROWS, DIM)
    writer.append(vectors[:10])
    with pytest.raises(DataError, match="vector 17"):
        writer.append(vectors[10:])
    with pytest.raises(DataError, match="vector 17"):
        VectorStore.of(vectors)


def broken(path: Path, content: bytes | None) -> None:
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize("name", ["shard-00001.npy", "norms.npy", "store.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_missing_cut_or_foreign_file_is_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    write(tmp_path, [ROWS])
    broken(tmp_path / name, content)
    with pytest.raises(DataError):
        VectorStore.open(tmp_path)


def test_a_changed_vector_changes_the_fingerprint() -> None:
    changed = VECTORS_ND.copy()
    changed[3, 1] += 1
    assert VectorStore.of(VECTORS_ND).fingerprint != VectorStore.of(changed).fingerprint


# --- `search: auto` selects the fastest exact method on this machine; the hits are the same for every method


WINS, LOSES = 3.0, 0.3
QUERIES = ["ba be", "do", "gu go ge"]


def scans(folder: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Simulate a machine with this int8 speed ratio and slow bfloat16."""
    kept(folder, monkeypatch, SLOW, SLOW, int8_search=ratio)


def test_auto_takes_int8_only_where_it_wins_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ratio, expected in ((LOSES, "exact"), (1.0, "exact"), (1.19, "exact"), (1.21, "int8"), (WINS, "int8")):
        scans(tmp_path, monkeypatch, ratio)
        choice = choose_method(MIN_ROWS, 24, "float32", "cpu")
        assert choice.taken == expected and f"{ratio:.2g} × the speed" in choice.why


def test_few_vectors_need_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = VectorStore.of(unit_rows(np.random.default_rng(0), 1_000, 24))
    assert fastest_method(store, "cpu").taken == "exact"
    assert choose_method(10**9, 140_000, "float32", "cpu").taken == "exact"  # sums overflow 32 bits
    assert not list(tmp_path.iterdir())


def test_vectors_that_do_not_fit_into_memory_are_scanned_in_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans(tmp_path, monkeypatch, LOSES)
    fit = int(memory_bytes() * exact.MEMORY_SHARE) // (4 * 384)
    assert [choose_method(rows, 384, "float32", "cpu").taken for rows in (fit - 1, fit + 1)] == ["exact", "int8"]


@pytest.mark.slow
def test_auto_finds_what_every_way_finds_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MIN_ROWS", 100)
    make_encoder(tmp_path / "encoder")
    corpus, settings = sentences(300), {"encoder": str(tmp_path / "encoder")}
    scans(tmp_path / "cache", monkeypatch, WINS)  # so that all builds encode in one precision
    plain = build_index(corpus, "dense", tmp_path / "plain", {**settings, "search": "exact"})
    assert isinstance(plain, Dense)
    for name, ratio, first in (("quick", WINS, "int8"), ("slow", LOSES, "exact")):
        scans(tmp_path / "cache", monkeypatch, ratio)
        built = build_index(corpus, "dense", tmp_path / name, settings)
        assert isinstance(built, Dense) and built.method == first
        assert (tmp_path / name / CODES).exists() == (first == "int8")
        assert built.search(QUERIES, 20) == plain.search(QUERIES, 20)
        # On the other machine: an int8 copy is used where it is faster, and is not required.
        scans(tmp_path / "cache", monkeypatch, LOSES if ratio == WINS else WINS)
        carried = open_index(tmp_path / name, corpus)
        assert isinstance(carried, Dense) and carried.method == "exact"
        assert carried.search(QUERIES, 20) == plain.search(QUERIES, 20)
        assert carried.identity == built.identity


@pytest.mark.slow
def test_int8_multiplies_integers_exactly_without_the_newest_instructions(tmp_path: Path) -> None:
    """AVX2 adds pairs of products in 16 bits. Other processors ignore the variable."""
    code = f"""
import numpy as np
from pathlib import Path
from tests.retrieval.brute import brute_force, near_ties, outliers, unit_rows
from coseek.retrieval.vectors.int8 import Int8Search, largest_query_code, quantise
from coseek.retrieval.vectors.store import VectorStore

assert largest_query_code() >= 64
rng = np.random.default_rng(0)
for number, vectors in enumerate((unit_rows(rng, 3_000, 48), near_ties(rng, 3_000, 48), outliers(rng, 3_000, 48))):
    store, folder = VectorStore.of(vectors), Path({str(tmp_path)!r}) / str(number)
    quantise(store, folder)
    for queries in (vectors[:1], vectors[:5], unit_rows(rng, 64, 48)):
        assert np.array_equal(Int8Search(store, folder).search(queries, 10)[0], brute_force(vectors, queries, 10))
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
