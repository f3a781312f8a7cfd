from pathlib import Path

import numpy as np
import pytest

from coseek.core.errors import DataError
from coseek.retrieval.vectors.store import FloatName, VectorStore, VectorWriter

ROWS, DIM, SHARD = 25, 3, 10
VECTORS_ND = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)


def write(folder: Path, sizes: list[int], dtype: FloatName = "float32") -> VectorStore:
    """All rows, in pieces, by one writer after another, as if each had been killed after its piece."""
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


def test_every_shard_is_an_ordinary_numpy_file(tmp_path: Path) -> None:
    write(tmp_path, [ROWS])
    shards = [np.load(path) for path in sorted(tmp_path.glob("shard-*.npy"))]
    assert [len(shard) for shard in shards] == [10, 10, 5]
    assert np.array_equal(np.concatenate(shards), VECTORS_ND)


def test_blocks_cover_all_rows_in_order_and_copy_nothing(tmp_path: Path) -> None:
    store = write(tmp_path, [ROWS])
    blocks = list(store.blocks(4))
    assert [start for start, _ in blocks] == [0, 4, 8, 10, 14, 18, 20, 24]
    assert np.array_equal(np.concatenate([block for _, block in blocks]), VECTORS_ND)
    assert not any(block.flags.owndata for _, block in blocks)


def test_float16_rounds_and_keeps_its_norms(tmp_path: Path) -> None:
    store = write(tmp_path, [20, 5], "float16")
    halves = VECTORS_ND.astype(np.float16)
    assert store.dtype == "float16"
    assert np.array_equal(store.gather(np.arange(ROWS)), halves)
    assert np.allclose(store.norms_N, np.linalg.norm(halves.astype(np.float64), axis=1), rtol=1e-15)


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
