"""The reference ranking, and arrays that are hard to rank, for the tests of exact and int8 search."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

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
