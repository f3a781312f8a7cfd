"""Int8 search: finds the exact k best rows with a scan of a quarter of the bytes.

Every vector x is also stored as x ≈ s·X with int8 numbers X, and a query q is approximated as t·Q. Then

    ⟨x, q⟩ − s·t·⟨X, Q⟩ = ⟨x − sX, q⟩ + ⟨sX, q − tQ⟩        so        |…| ≤ ‖x − sX‖·‖q‖ + ‖sX‖·‖q − tQ‖

by Cauchy–Schwarz. The integer product is exact and the norms are stored, so the shortlist finds the same rows as a
float32 scan.

Runs of rows are sorted by their largest number, so that one scale per block fits all its rows and comparisons stay in
integers.

    codes.npy    int8 rows, N and D padded with zeros          rows.npy     the store's row of each
    scales.npy   s of each block of BLOCK rows                 bounds.npy   ‖x − sX‖ and ‖sX‖ of each row, rounded up
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, IndexMismatch
from coseek.core.files import JsonObject, atomic_folder, read_json, write_json
from coseek.retrieval.vectors.shortlist import Bounds, Doubles, Product, Queries, ScanSearch, Shortlist, score_error
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore, mapped

SCHEMA = 1
BLOCK = 16_384
"""Rows per scale."""
PRODUCT_ROWS = 4 * BLOCK
"""Rows per product; with 64 queries the result takes 16 MB. Smaller products are not faster, and slower on a busy
machine, where threads wait for each other after each product."""
SORT_ROWS = 16 * BLOCK
"""Rows that are sorted together."""
_MAX_CODE = 127
_MAX_PAIRED_CODE = 64
"""The largest query code for CPUs that add pairs of products in 16 bits, with codes shifted to 0 … 255 (AVX2 and
older): 2 · 255 · 64 < 2¹⁵."""
_PAD_ROWS, _PAD_DIM, _PAD_QUERIES = 32, 16, 16
_CARD = "int8.json"
Codes = NDArray[np.int8]


def quantise(store: VectorStore, folder: Path) -> None:
    """Write the int8 copy of a store into a folder, atomically."""
    if not fits_int32(store.dim):
        raise DataError(f"vectors of {store.dim} dimensions are too long for int8 search; use search: exact")
    atomic_folder(folder, lambda target: _write_files(store, target))


def fits_int32(dim: int) -> bool:
    """Whether inner products of `dim` dimensions fit into 32 bits."""
    return dim * _MAX_CODE**2 < 2**31


def _write_files(store: VectorStore, folder: Path) -> None:
    count, shape = len(store), _shape(store)
    codes_ND = np.lib.format.open_memmap(folder / "codes.npy", mode="w+", dtype=np.int8, shape=shape)
    rows_N, bounds_2N = np.zeros(count, dtype=np.int64), np.zeros((2, count))
    scales: list[float] = []
    for sort_start in range(0, count, SORT_ROWS):
        sort_end = min(sort_start + SORT_ROWS, count)
        maxima = _row_maxima(store, sort_start, sort_end)
        rows_N[sort_start:sort_end] = sort_start + np.argsort(maxima, kind="stable")
        for start in range(sort_start, sort_end, BLOCK):
            stop = min(start + BLOCK, sort_end)
            order = np.argsort(rows_N[start:stop])
            rows_N[start:stop] = rows_N[start:stop][order]
            vectors_BD = store.gather(rows_N[start:stop])
            codes_BD, bounds_2N[:, start:stop], scale = encode(vectors_BD)
            codes_ND[start:stop, : store.dim] = codes_BD
            scales.append(scale)
    codes_ND.flush()
    np.save(folder / "rows.npy", rows_N)
    np.save(folder / "bounds.npy", bounds_2N)
    np.save(folder / "scales.npy", np.array(scales))
    write_json(folder / _CARD, _card(store))


def _card(store: VectorStore) -> JsonObject:
    return {"schema": SCHEMA, "block": BLOCK, "vectors": store.fingerprint}


def _shape(store: VectorStore) -> tuple[int, int]:
    """The shape of the codes, padded to whole groups of rows and to the dimensions that integer products need."""
    return -(-len(store) // _PAD_ROWS) * _PAD_ROWS, -(-store.dim // _PAD_DIM) * _PAD_DIM


def _row_maxima(store: VectorStore, first: int, last: int) -> Doubles:
    """The largest absolute value of each row from `first` up to `last`."""
    blocks = (np.arange(start, min(start + BLOCK, last)) for start in range(first, last, BLOCK))
    return np.concatenate([np.abs(store.gather(rows)).max(axis=1).astype(np.float64) for rows in blocks])


def encode(vectors_BD: Floats) -> tuple[Codes, Doubles, float]:
    """`(X, bounds_2B, s)`: codes, bounds of ‖x − sX‖ (with the rounding error of scores) and ‖sX‖ per row, the
    scale."""
    wide_BD = vectors_BD.astype(np.float64)
    scale = float(np.abs(wide_BD).max()) / _MAX_CODE or 1.0
    codes_BD = np.rint(wide_BD / scale)
    decoded_BD = codes_BD * scale
    norms_B, decoded_norms_B, error_norms_B = (
        np.sqrt(np.square(array_BD).sum(axis=1)) for array_BD in (wide_BD, decoded_BD, wide_BD - decoded_BD)
    )
    # Products, differences and norms each round by some units of 2⁻⁵³ of their operands.
    rounding_B = (norms_B + decoded_norms_B) * (score_error(vectors_BD.shape[1]) + 2.0**-48)
    bounds_2B = np.stack([error_norms_B + rounding_B, decoded_norms_B + rounding_B])
    return codes_BD.astype(np.int8), bounds_2B, scale


class Int8Search(ScanSearch):
    """Scans every row in int8."""

    def __init__(self, store: VectorStore, folder: Path, queries_per_tile: int = 64) -> None:
        super().__init__(store, queries_per_tile)
        if read_json(folder / _CARD) != _card(store):
            raise IndexMismatch(f"{folder} is an int8 copy of other vectors than those at hand; rebuild the index")
        count = len(store)
        self._codes_ND = cast(Codes, mapped(folder / "codes.npy", "int8", _shape(store)))
        self._rows_N = cast(Rows, mapped(folder / "rows.npy", "int64", (count,)))
        self._bounds_2N = cast(Doubles, mapped(folder / "bounds.npy", "float64", (2, count)))
        self._scales = cast(Doubles, mapped(folder / "scales.npy", "float64", (-(-count // BLOCK),)))

    def _scan(self, tiles: Sequence[tuple[Queries, Shortlist]]) -> None:
        for queries_QD, shortlist in tiles:
            self._scan_tile(queries_QD, shortlist)

    def _scan_tile(self, queries_QD: Queries, shortlist: Shortlist) -> None:
        wide_QD = queries_QD.astype(np.float64)
        scales_Q1 = np.abs(wide_QD).max(axis=1, keepdims=True) / largest_query_code()
        codes_QD = np.rint(wide_QD / scales_Q1)
        norms_Q = np.sqrt(np.square(wide_QD).sum(axis=1))
        rest_Q = np.sqrt(np.square(wide_QD - codes_QD * scales_Q1).sum(axis=1)) + norms_Q * 2.0**-48
        multiply = _products(_pad_queries(codes_QD, self._codes_ND.shape[1]))
        for first in range(0, len(self._store), PRODUCT_ROWS):
            product_BQ = multiply(self._codes_ND[first : first + PRODUCT_ROWS])
            for start in range(first, min(first + PRODUCT_ROWS, len(self._store)), BLOCK):
                stop = min(start + BLOCK, len(self._store))
                coarse_B, fine_B = self._bounds_2N[:, start:stop]
                unit_Q = self._scales[start // BLOCK] * scales_Q1[:, 0]
                bounds = Bounds(unit_Q, coarse_B, norms_Q, fine_B, rest_Q)
                product = product_BQ[start - first : start - first + BLOCK]
                shortlist.add_block(product, self._rows_N[start:stop], bounds)


def _pad_queries(codes_QD: Doubles, dim: int) -> Codes:
    """Pad query codes with zeros in both dimensions. A single query stays single, which is twice as fast."""
    count = 1 if len(codes_QD) == 1 else -(-len(codes_QD) // _PAD_QUERIES) * _PAD_QUERIES
    padded = np.zeros((count, dim), dtype=np.int8)
    padded[: len(codes_QD), : codes_QD.shape[1]] = codes_QD
    return padded


def _products(queries_QD: Codes) -> Callable[[Codes], Product]:
    """Returns a function that multiplies a block with the queries; its result is overwritten by the next call."""
    import torch

    queries_DQ = torch.from_numpy(queries_QD).t()  # a non-contiguous view is fastest here
    out_BQ = torch.zeros((PRODUCT_ROWS, len(queries_QD)), dtype=torch.int32)

    def multiply(codes_BD: Codes) -> Product:
        return torch._int_mm(torch.from_numpy(codes_BD), queries_DQ, out=out_BQ[: len(codes_BD)])

    return multiply


@cache
def largest_query_code() -> int:
    """The largest query code for which torch's integer product is exact on this CPU; 0 for none. CPUs without VNNI
    instructions add pairs of products in 16 bits, which overflow with the largest codes. Smaller query codes give
    wider bounds, so that more rows are rescored, and the same result."""
    return next((largest for largest in (_MAX_CODE, _MAX_PAIRED_CODE) if _is_exact(largest)), 0)


def _is_exact(largest: int) -> bool:
    """Whether products of the largest codes are exact, for one query and for several."""
    import torch

    rows = torch.full((_PAD_ROWS, 64), _MAX_CODE, dtype=torch.int8)
    rows[1::2] = -_MAX_CODE
    queries = torch.full((_PAD_QUERIES, 64), largest, dtype=torch.int8)
    queries[1::2] = -largest
    batches = (queries[:1], queries)
    return all(bool((torch._int_mm(rows, batch.t()) == rows.int() @ batch.int().t()).all()) for batch in batches)
