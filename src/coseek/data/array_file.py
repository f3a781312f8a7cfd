"""Array files: numpy arrays that an index keeps, read with the type and shape that they must have."""

import tokenize
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError

# A header is a Python literal of any content, and may ask for any amount of memory.
UNREADABLE = (
    OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError, TypeError, LookupError, OverflowError, MemoryError,
    DeprecationWarning,
)  # fmt: skip
"""What numpy raises for a broken file; the last for an old name of a type, where warnings are errors."""
WAY_OUT = "rebuild the index with `coseek index`"
_BEGINS = b"\x93NUMPY"


def read_array(
    path: Path, kind: Literal["i", "f"], columns: int | None = None, *, mapped: Literal["r", "c"] | None = None
) -> NDArray[np.generic]:
    """The array of a file: integers (`i`) or floats (`f`), one-dimensional or of so many columns. `mapped` leaves it on
    disk, read-only or copied on write. Raises `DataError` for anything else."""
    try:
        with path.open("rb") as file:
            if file.read(len(_BEGINS)) != _BEGINS:  # numpy would propose to unpickle it
                raise ValueError("it begins as something else")
        found: object = np.load(path, mmap_mode=mapped, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {WAY_OUT}") from None
    except UNREADABLE as error:
        said = (str(error) or type(error).__name__).splitlines()[0][:120]
        raise DataError(f"{path} is no whole array ({said}); {WAY_OUT}") from None
    assert isinstance(found, np.ndarray)
    shape = (len(found),) if found.ndim and columns is None else (len(found) if found.ndim else 0, columns)
    if found.dtype.kind not in ("iu" if kind == "i" else kind) or found.shape != shape:
        raise DataError(f"{path} holds {found.dtype} {found.shape}, which no index writes there; {WAY_OUT}")
    # A plain view of a mapped file: slices of np.memmap cost microseconds each.
    return np.asarray(found)
