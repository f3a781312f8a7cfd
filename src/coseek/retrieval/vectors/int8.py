"""Int8: the exact k best rows by way of a quarter of the bytes.

Every vector x is kept a second time as x ≈ s·X with X of int8 numbers, and a query q becomes t·Q. Then

    ⟨x, q⟩ − s·t·⟨X, Q⟩ = ⟨x − sX, q⟩ + ⟨sX, q − tQ⟩        so        |…| ≤ ‖x − sX‖·‖q‖ + ‖sX‖·‖q − tQ‖

by Cauchy–Schwarz. The integer product is exact, the norms are stored with the codes, and the shortlist settles in
float64 what the bound leaves open: what is found is what looking at all float32 rows would find.

Rows are sorted by their largest number inside stretches of the store, so that a block has one scale that suits all its
rows, and comparing stays a matter of integers.

    codes.npy    rows of int8, N and D filled up with zeros    rows.npy     which row of the store each is
    scales.npy   s of each block of BLOCK rows                 bounds.npy   ‖x − sX‖ and ‖sX‖ of each row, rounded up
"""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, IndexMismatch
from coseek.core.files import JsonObject, atomic_folder, read_json, write_json
from coseek.retrieval.vectors.block_scores import GROUP, Doubles, Product, peaks_of
from coseek.retrieval.vectors.shortlist import Bounds, Queries, SearchResult, Shortlist, score_error, search
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore, mapped

SCHEMA = 1
BLOCK = 16_384
"""Rows with one scale."""
TOGETHER = 4 * BLOCK
"""Rows in one product, whose result takes 16 MB with 64 queries. Smaller ones are no quicker on a machine that does
nothing else, and slower on a busy one, where threads wait for each other after each product."""
STRETCH = 16 * BLOCK
"""Rows sorted together."""
_LARGEST = 127
_LARGEST_IN_PAIRS = 64
"""Largest code of a query where products are added in pairs of 16 bits, of codes that were lifted to 0 … 255 (AVX2 and
older): 2 · 255 · 64 stays under 2¹⁵."""
_PAD_ROWS, _PAD_DIM, _PAD_QUERIES = 32, 16, 16
_CARD = "int8.json"
Codes = NDArray[np.int8]


def quantise(store: VectorStore, folder: Path) -> None:
    """Write the int8 copy of a store into a folder, which appears whole or not at all."""
    check_dim(store.dim)
    atomic_folder(folder, lambda part: _fill(store, part))


def holds(dim: int) -> bool:
    """Whether sums of so many products fit into 32 bits."""
    return dim * _LARGEST**2 < 2**31


def check_dim(dim: int) -> None:
    if not holds(dim):
        raise DataError(f"vectors of {dim} dimensions are too long for int8 search; use search: exact")


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
    """Of the codes: rows filled up to whole groups, dimensions to what integer products like."""
    return -(-len(store) // _PAD_ROWS) * _PAD_ROWS, -(-store.dim // _PAD_DIM) * _PAD_DIM


def _largest(store: VectorStore, begin: int, end: int) -> Doubles:
    """The largest absolute number of each row."""
    found = np.empty(end - begin)
    for start in range(begin, end, BLOCK):
        rows = np.arange(start, min(start + BLOCK, end))
        found[start - begin : start - begin + len(rows)] = np.abs(store.gather(rows)).max(axis=1)
    return found


def encode(vectors_BD: Floats) -> tuple[Codes, Doubles, float]:
    """`(X, bounds_2B, s)`: codes with one scale, and upper bounds of ‖x − sX‖ and ‖sX‖ for each row.

    The first bound has the rounding error of the float64 score in it, too.
    """
    wide_BD = vectors_BD.astype(np.float64)
    scale = float(np.abs(wide_BD).max()) / _LARGEST or 1.0
    codes_BD = np.rint(wide_BD / scale)
    near_BD = codes_BD * scale
    norms_B, kept_B, lost_B = (np.sqrt(np.square(part).sum(axis=1)) for part in (wide_BD, near_BD, wide_BD - near_BD))
    # Products, differences and norms are rounded, each by some units of 2⁻⁵³ of the numbers that go in.
    rounding_B = (norms_B + kept_B) * (score_error(vectors_BD.shape[1]) + 2.0**-48)
    return codes_BD.astype(np.int8), np.stack([lost_B + rounding_B, kept_B + rounding_B]), scale


class Int8Search:
    """Looks at every row in int8."""

    def __init__(self, store: VectorStore, folder: Path, together: int = 64) -> None:
        self._store, self._together = store, together
        if read_json(folder / _CARD) != _card(store):
            raise IndexMismatch(f"{folder} is an int8 copy of other vectors than those at hand; make the index anew")
        count = len(store)
        self._codes_ND = cast(Codes, mapped(folder / "codes.npy", "int8", _shape(store)))
        self._rows_N = cast(Rows, mapped(folder / "rows.npy", "int64", (count,)))
        self._bounds_2N = cast(Doubles, mapped(folder / "bounds.npy", "float64", (2, count)))
        self._scales = cast(Doubles, mapped(folder / "scales.npy", "float64", (-(-count // BLOCK),)))

    def search(self, queries_QD: Queries, k: int) -> tuple[Rows, NDArray[np.float32]]:
        found = self.find(queries_QD, k)
        return found.rows_QK, found.scores_QK

    def find(self, queries_QD: Queries, k: int) -> SearchResult:
        return search(self._store, queries_QD, k, self._scan, self._together)

    def _scan(self, queries_QD: Queries, shortlist: Shortlist) -> None:
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
    """Queries as int8, filled up with zeros in both directions; one alone stays alone, which is twice as quick."""
    count = 1 if len(codes_QD) == 1 else -(-len(codes_QD) // _PAD_QUERIES) * _PAD_QUERIES
    filled = np.zeros((count, dim), dtype=np.int8)
    filled[: len(codes_QD), : codes_QD.shape[1]] = codes_QD
    return filled


def _products(queries_QD: Codes) -> Callable[[Codes], Product]:
    """Multiplies blocks with the queries; a result lives until the next call."""
    if not largest_query_code():
        return lambda codes_BD: _float_product(codes_BD, queries_QD)
    import torch

    queries_DQ = torch.from_numpy(queries_QD).t()  # not contiguous: the quickest here
    out_BQ = torch.zeros((TOGETHER, len(queries_QD)), dtype=torch.int32)

    def multiply(codes_BD: Codes) -> Product:
        return torch._int_mm(torch.from_numpy(codes_BD), queries_DQ, out=out_BQ[: len(codes_BD)])

    return multiply


@cache
def largest_query_code() -> int:
    """The largest code of a query with which torch's integer product is exact on this processor; 0 for none, or no
    torch.

    Without the instructions made for it (VNNI), libraries add pairs of products in 16 bits, which overflow with the
    largest codes. Coarser queries leave more rows to be scored in float64, and the same ones are found.
    """
    if importlib.util.find_spec("torch") is None:
        return 0
    return next((largest for largest in (_LARGEST, _LARGEST_IN_PAIRS) if _is_exact(largest)), 0)


def _is_exact(largest: int) -> bool:
    """Whether products of the largest codes are right, for one query and for several."""
    import torch

    rows = torch.full((_PAD_ROWS, 64), _LARGEST, dtype=torch.int8)
    rows[1::2] = -_LARGEST
    queries = torch.full((_PAD_QUERIES, 64), largest, dtype=torch.int8)
    queries[1::2] = -largest
    both = (queries[:1], queries)
    return all(bool((torch._int_mm(rows, some.t()) == rows.int() @ some.int().t()).all()) for some in both)


def _float_product(codes_BD: Codes, queries_QD: Codes) -> Product:
    """The same integers from floats, that hold them exactly: sums stay under 2²⁴ (float32) or 2⁵³ (float64)."""
    if codes_BD.shape[1] * _LARGEST**2 < 2**24:
        return (codes_BD.astype(np.float32) @ queries_QD.astype(np.float32).T).astype(np.int32)
    return (codes_BD.astype(np.float64) @ queries_QD.astype(np.float64).T).astype(np.int32)
