"""Vectors: searches rank like float64, and the store returns what was written."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from tests.examples_drawn import at_most
from tests.hardware.paces import SLOW, kept
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
)
from coseek.retrieval.vectors.int8 import Int8Search, encode, quantise
from coseek.retrieval.vectors.shortlist import peaks_of, reaching, reaching_on_device, scores_of
from coseek.retrieval.vectors.store import FloatName, VectorStore, VectorWriter

# --- the reference ranking, and arrays that are hard to rank
Floats = NDArray[np.float32]


def all_scores(vectors_ND: NDArray[np.float32] | NDArray[np.float16], queries_QD: Floats) -> NDArray[np.float64]:
    wide_ND = vectors_ND.astype(np.float64)
    return np.stack([(wide_ND * query_D.astype(np.float64)).sum(axis=1) for query_D in queries_QD])


def brute_force(vectors_ND: NDArray[np.float32] | NDArray[np.float16], queries_QD: Floats, k: int) -> NDArray[np.int64]:
    """Every score in float64, sorted; equal scores by row."""
    return np.argsort(-all_scores(vectors_ND, queries_QD), axis=1, kind="stable")[:, :k]


def unit_rows(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    vectors = rng.standard_normal((rows, dim))
    unit: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def copies(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    """A few rows, each repeated many times."""
    return unit_rows(rng, max(1, rows // 20), dim)[rng.integers(0, max(1, rows // 20), rows)]


def near_ties(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    """Copies of one row, each changed by one unit in the last place in a few numbers."""
    base = np.tile(unit_rows(rng, 1, dim), (rows, 1))
    return np.nextafter(base, np.where(rng.random(base.shape) < 2 / dim, np.float32(9), base)).astype(np.float32)


def mixed_norms(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    """Norms from 1e-20 to 1e20, and rows of zeros."""
    scales = 10.0 ** rng.uniform(-20, 20, (rows, 1)) * (rng.random((rows, 1)) < 0.9)
    return (unit_rows(rng, rows, dim) * scales).astype(np.float32)


def outliers(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    """A few numbers a thousand times the others: one scale suits such a row badly."""
    vectors = rng.standard_normal((rows, dim)) * np.where(rng.random((rows, dim)) < 0.02, 1e3, 1)
    return vectors.astype(np.float32)


def denormals(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    """Numbers that processors may flush to zero."""
    return (rng.standard_normal((rows, dim)) * 10.0 ** rng.uniform(-45, -36, (rows, 1))).astype(np.float32)


def huge(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    """Products of float32 numbers that overflow, with both signs."""
    return (rng.uniform(-1, 1, (rows, dim)) * 3e38).astype(np.float32)


def zeros(_: np.random.Generator, rows: int, dim: int) -> Floats:
    return np.zeros((rows, dim), dtype=np.float32)


def whole_numbers(rng: np.random.Generator, rows: int, dim: int) -> Floats:
    """Rows that tie without being equal."""
    return rng.integers(-2, 3, (rows, dim)).astype(np.float32)


Maker = Callable[[np.random.Generator, int, int], Floats]
MAKERS: tuple[Maker, ...] = (
    unit_rows, copies, near_ties, mixed_norms, outliers, denormals, huge, zeros, whole_numbers,
)  # fmt: skip


@st.composite
def hard_cases(draw: st.DrawFn) -> tuple[Floats, Floats, int]:
    """Vectors, queries (some of them rows, some zeros) and k."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, dim, count = draw(st.integers(1, 250)), draw(st.integers(1, 70)), draw(st.integers(1, 9))
    vectors = draw(st.sampled_from(MAKERS))(rng, rows, dim)
    queries = draw(st.sampled_from(MAKERS))(rng, count, dim)
    from_rows = rng.random(count) < 0.5
    queries[from_rows] = vectors[rng.integers(0, rows, int(from_rows.sum()))]
    return vectors, queries, draw(st.integers(1, 30) | st.integers(1, 300))


def check_ranking(
    ranking: tuple[NDArray[np.int64], NDArray[np.float32]],
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    k: int,
) -> None:
    """Check hits against the reference ranking, to the last id and the last bit of the finite scores. So no score
    depends on the batch, the block, or the rows that are scored beside it."""
    rows, scores = ranking
    assert np.array_equal(rows, brute_force(vectors, queries, k))
    largest = float(np.finfo(np.float32).max)
    wanted = np.take_along_axis(all_scores(vectors, queries), rows, axis=1).clip(-largest, largest).astype(np.float32)
    assert np.array_equal(scores, wanted)


# --- exact search

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
from tests.retrieval.test_vectors import brute_force, near_ties, outliers, unit_rows
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
