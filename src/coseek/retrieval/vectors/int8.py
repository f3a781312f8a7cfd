"""Int8 search: finds the exact k best rows with a scan of a quarter of the bytes.

Every vector x is also stored as x ≈ s·X with int8 numbers X, and a query q is approximated as t·Q. Then

    ⟨x, q⟩ − s·t·⟨X, Q⟩ = ⟨x − sX, q⟩ + ⟨sX, q − tQ⟩        so        |…| ≤ ‖x − sX‖·‖q‖ + ‖sX‖·‖q − tQ‖

by Cauchy–Schwarz. The integer product is exact and the norms are stored, so the shortlist finds the same rows as a
float32 scan.

Rows are sorted by their largest number within stretches of the store, so that one scale per block fits all its rows and
comparisons stay in integers.

    codes.npy    int8 rows, N and D padded with zeros          rows.npy     the store's row of each
    scales.npy   s of each block of BLOCK rows                 bounds.npy   ‖x − sX‖ and ‖sX‖ of each row, rounded up
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, IndexMismatch
from coseek.core.files import JsonObject, atomic_folder, read_json, write_json
from coseek.retrieval.vectors.shortlist import (
    GROUP,
    Bounds,
    Doubles,
    Product,
    Queries,
    ScanSearch,
    Shortlist,
    peaks_of,
    score_error,
)
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore, mapped

SCHEMA = 1
BLOCK = 16_384
"""Rows per scale."""
TOGETHER = 4 * BLOCK
"""Rows per product; with 64 queries the result takes 16 MB. Smaller products are not faster, and slower on a busy
machine, where threads wait for each other after each product."""
STRETCH = 16 * BLOCK
"""Rows per sorted stretch."""
_LARGEST = 127
_LARGEST_IN_PAIRS = 64
"""The largest query code for CPUs that add pairs of products in 16 bits, with codes shifted to 0 … 255 (AVX2 and
older): 2 · 255 · 64 < 2¹⁵."""
_PAD_ROWS, _PAD_DIM, _PAD_QUERIES = 32, 16, 16
_CARD = "int8.json"
Codes = NDArray[np.int8]


def quantise(store: VectorStore, folder: Path) -> None:
    """Write the int8 copy of a store into a folder, atomically."""
    if not holds(store.dim):
        raise DataError(f"vectors of {store.dim} dimensions are too long for int8 search; use search: exact")
    atomic_folder(folder, lambda part: _fill(store, part))


def holds(dim: int) -> bool:
    """Whether inner products of `dim` dimensions fit into 32 bits."""
    return dim * _LARGEST**2 < 2**31


def _fill(store: VectorStore, folder: Path) -> None:
    count, shape = len(store), _shape(store)
    codes_ND = np.lib.format.open_memmap(folder / "codes.npy", mode="w+", dtype=np.int8, shape=shape)
    rows_N, bounds_2N = np.zeros(count, dtype=np.int64), np.zeros((2, count))
    scales: list[float] = []
    for begin in range(0, count, STRETCH):
        end = min(begin + STRETCH, count)
        rows_N[begin:end] = begin + np.argsort(_largest(store, begin, end), kind="stable")
        for start in range(begin, end, BLOCK):
            stop = min(start + BLOCK, end)
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


def _largest(store: VectorStore, begin: int, end: int) -> Doubles:
    """The largest absolute value of each row."""
    found = np.empty(end - begin)
    for start in range(begin, end, BLOCK):
        rows = np.arange(start, min(start + BLOCK, end))
        found[start - begin : start - begin + len(rows)] = np.abs(store.gather(rows)).max(axis=1)
    return found


def encode(vectors_BD: Floats) -> tuple[Codes, Doubles, float]:
    """`(X, bounds_2B, s)`: codes, bounds of ‖x − sX‖ (with the rounding error of scores) and ‖sX‖ per row, the
    scale."""
    wide_BD = vectors_BD.astype(np.float64)
    scale = float(np.abs(wide_BD).max()) / _LARGEST or 1.0
    codes_BD = np.rint(wide_BD / scale)
    near_BD = codes_BD * scale
    norms_B, kept_B, lost_B = (np.sqrt(np.square(part).sum(axis=1)) for part in (wide_BD, near_BD, wide_BD - near_BD))
    # Products, differences and norms each round by some units of 2⁻⁵³ of their operands.
    rounding_B = (norms_B + kept_B) * (score_error(vectors_BD.shape[1]) + 2.0**-48)
    return codes_BD.astype(np.int8), np.stack([lost_B + rounding_B, kept_B + rounding_B]), scale


class Int8Search(ScanSearch):
    """Scans every row in int8."""

    def __init__(self, store: VectorStore, folder: Path, together: int = 64) -> None:
        super().__init__(store, together)
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
        scales_Q1 = np.abs(wide_QD).max(axis=1, keepdims=True) / (largest_query_code() or _LARGEST)
        codes_QD = np.rint(wide_QD / scales_Q1)
        norms_Q, lost_Q = (np.sqrt(np.square(part).sum(axis=1)) for part in (wide_QD, wide_QD - codes_QD * scales_Q1))
        rest_Q = lost_Q + norms_Q * 2.0**-48
        multiply = _products(_filled(codes_QD, self._codes_ND.shape[1]))
        for first in range(0, len(self._store), TOGETHER):
            product_BQ = multiply(self._codes_ND[first : first + TOGETHER])
            peaks_GQ = peaks_of(product_BQ)
            for start in range(first, min(first + TOGETHER, len(self._store)), BLOCK):
                stop = min(start + BLOCK, len(self._store))
                coarse_B, fine_B = self._bounds_2N[:, start:stop]
                unit_Q = self._scales[start // BLOCK] * scales_Q1[:, 0]
                own = slice(start - first, start - first + BLOCK)
                groups = slice(own.start // GROUP, own.stop // GROUP)
                bounds = Bounds(unit_Q, coarse_B, norms_Q, fine_B, rest_Q)
                shortlist.take(product_BQ[own], peaks_GQ[groups], self._rows_N[start:stop], bounds)


def _filled(codes_QD: Doubles, dim: int) -> Codes:
    """Pad query codes with zeros in both dimensions. A single query stays single, which is twice as fast."""
    count = 1 if len(codes_QD) == 1 else -(-len(codes_QD) // _PAD_QUERIES) * _PAD_QUERIES
    filled = np.zeros((count, dim), dtype=np.int8)
    filled[: len(codes_QD), : codes_QD.shape[1]] = codes_QD
    return filled


def _products(queries_QD: Codes) -> Callable[[Codes], Product]:
    """Returns a function that multiplies a block with the queries; its result is overwritten by the next call."""
    if not largest_query_code():
        return lambda codes_BD: _float_product(codes_BD, queries_QD)
    import torch

    queries_DQ = torch.from_numpy(queries_QD).t()  # a non-contiguous view is fastest here
    out_BQ = torch.zeros((TOGETHER, len(queries_QD)), dtype=torch.int32)

    def multiply(codes_BD: Codes) -> Product:
        return torch._int_mm(torch.from_numpy(codes_BD), queries_DQ, out=out_BQ[: len(codes_BD)])

    return multiply


@cache
def largest_query_code() -> int:
    """The largest query code for which torch's integer product is exact on this CPU; 0 for none, or without torch. CPUs
    without VNNI instructions add pairs of products in 16 bits, which overflow with the largest codes. Smaller query
    codes give wider bounds, so that more rows are rescored, and the same result."""
    if importlib.util.find_spec("torch") is None:
        return 0
    return next((largest for largest in (_LARGEST, _LARGEST_IN_PAIRS) if _is_exact(largest)), 0)


def _is_exact(largest: int) -> bool:
    """Whether products of the largest codes are exact, for one query and for several."""
    import torch

    rows = torch.full((_PAD_ROWS, 64), _LARGEST, dtype=torch.int8)
    rows[1::2] = -_LARGEST
    queries = torch.full((_PAD_QUERIES, 64), largest, dtype=torch.int8)
    queries[1::2] = -largest
    both = (queries[:1], queries)
    return all(bool((torch._int_mm(rows, some.t()) == rows.int() @ some.int().t()).all()) for some in both)


def _float_product(codes_BD: Codes, queries_QD: Codes) -> Product:
    """The integer product computed in floats, which are exact below 2²⁴ (float32) or 2⁵³ (float64)."""
    if codes_BD.shape[1] * _LARGEST**2 < 2**24:
        return (codes_BD.astype(np.float32) @ queries_QD.astype(np.float32).T).astype(np.int32)
    return (codes_BD.astype(np.float64) @ queries_QD.astype(np.float64).T).astype(np.int32)
