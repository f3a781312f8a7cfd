"""Array writer: a one-dimensional numpy file that is written piece by piece, with the bytes that `numpy.save` gives."""

import io
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray


class ArrayWriter:
    """Writes pieces. Unsigned numbers are kept in the smallest type from `kind` on that holds them all."""

    def __init__(self, path: Path, kind: type[np.generic]) -> None:
        self._path, self._kind, self._length = path, np.dtype(kind), 0
        self._file = path.open("w+b")
        self._file.write(_header(self._kind, 0))

    def append(self, piece_P: NDArray[np.generic]) -> None:
        """Write a piece behind the others."""
        if self._kind.kind == "u" and (largest := int(piece_P.max(initial=0))) > np.iinfo(self._kind).max:
            self._widen(np.min_scalar_type(largest))
        self._file.write(np.ascontiguousarray(piece_P, dtype=self._kind).data)
        self._length += len(piece_P)

    def _widen(self, kind: "np.dtype[np.generic]") -> None:
        self._file.seek(len(_header(self._kind, 0)))
        written_P = np.frombuffer(self._file.read(), dtype=self._kind).astype(kind)
        self._file.seek(0)
        self._file.write(_header(kind, 0) + written_P.tobytes())
        self._kind = kind

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._file.seek(0)
                self._file.write(_header(self._kind, self._length))
        finally:
            self._file.close()


def _header(kind: "np.dtype[np.generic]", length: int) -> bytes:
    """numpy leaves room in it for 21 digits of the length, so that its size does not depend on that."""
    file = io.BytesIO()
    description = np.lib.format.dtype_to_descr(kind)
    np.lib.format.write_array_header_1_0(file, {"descr": description, "fortran_order": False, "shape": (length,)})
    return file.getvalue()
