"""Arrays of indexes: a file that is cut, of another shape, or a program in disguise is refused with its name."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coseek.core.errors import DataError
from coseek.data.corpus_file import read_array


def stored(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)  # type: ignore[arg-type]
    return file.getvalue()


BROKEN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "cut": lambda: stored(np.arange(100))[:-9],
    "two columns": lambda: stored(np.zeros((4, 2), dtype=np.int64)),
    "floats": lambda: stored(np.zeros(4)),
    "objects, which are pickles": lambda: stored(np.array([{"a": 1}], dtype=object)),
}


@pytest.mark.parametrize("mapped", [None, "r", "c"])
@pytest.mark.parametrize("what", BROKEN)
def test_what_no_index_writes_is_refused_with_the_way_out(what: str, mapped: None, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    path.write_bytes(BROKEN[what]())
    with pytest.raises(DataError, match=r"rows\.npy .*; rebuild the index with `coseek index`"):
        read_array(path, "i", mapped=mapped)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.npy is missing"):
        read_array(tmp_path / "rows.npy", "i")


def test_whole_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "one.npy"
    for array, kind, columns in (
        (np.arange(5), "i", None),
        (np.arange(5, dtype=np.uint8), "i", None),
        (np.zeros(0, dtype=np.float32), "f", None),
        (np.arange(6).reshape(3, 2), "i", 2),
    ):
        np.save(path, array)
        for mapped in (None, "r", "c"):
            found = read_array(path, kind, columns, mapped=mapped)  # type: ignore[arg-type]
            assert found.dtype == array.dtype and np.array_equal(found, array)
