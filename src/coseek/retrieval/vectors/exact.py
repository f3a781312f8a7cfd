"""Exact search: finds the k best rows of a vector store by scanning all rows in float32 blocks.

The products are computed in float32 by numpy or torch, on a CPU or a GPU. Their rounding error has a proven bound; the
shortlist rescores in float64 the rows that the bound cannot rank.
"""

import importlib.util
from collections.abc import Callable

import numpy as np

from coseek.retrieval.vectors.block_scores import GROUP, Product, peaks_of
from coseek.retrieval.vectors.shortlist import Bounds, Queries, ScanSearch, Shortlist, score_error
from coseek.retrieval.vectors.store import Floats, VectorStore

BLOCK_ROWS = 65_536
"""Rows per product; with 64 queries the result takes 16 MB."""
_UNIT = 2.0**-24
"""Unit roundoff of float32."""
_REDUCED = 2.0**-7
"""Bound on the relative error of a product of two numbers rounded to bfloat16 (8 bits of precision)."""
_FITS = 1e37
"""Products of vectors with smaller norms cannot overflow float32."""


class ExactSearch(ScanSearch):
    """Scans every row in float32."""

    def __init__(
        self, store: VectorStore, device: str = "cpu", block_rows: int = BLOCK_ROWS, together: int = 64
    ) -> None:
        """`device` is `cpu`, `cuda`, `cuda:1`, …; a GPU keeps the vectors if they fit into most of its free memory.

        A product has `block_rows` rows and `together` queries. No argument changes the result.
        """
        super().__init__(store, together)
        self._block_rows = block_rows
        with_torch = device != "cpu" or importlib.util.find_spec("torch") is not None
        self._products = _TorchProducts(store, device, block_rows) if with_torch else _NumpyProducts()

    def _scan(self, queries_QD: Queries, shortlist: Shortlist) -> None:
        dim = self._store.dim
        # Scaling by a power of two is exact and brings queries to about 1, so that only huge vectors can overflow.
        power_Q = np.frexp(np.abs(queries_QD).max(axis=1))[1]
        scaled_QD = np.ldexp(queries_QD, -power_Q[:, None]).astype(np.float32)
        unit_Q = np.ldexp(1.0, power_Q)
        norms_Q = np.sqrt(np.square(queries_QD, dtype=np.float64).sum(axis=1))
        whole_Q = norms_Q * (product_error(dim) + self._products.cut + score_error(dim))
        # CPUs may flush numbers below 2⁻¹²⁶ to 0 in the vector, in a product and in a sum.
        rest_Q = unit_Q * (4.0 * dim * 2.0**-126)
        multiply = self._products.by(scaled_QD)
        for start, vectors_BD in self._store.blocks(self._block_rows):
            norms_B = self._store.norms_N[start : start + len(vectors_BD)]
            bounds = Bounds(unit_Q, norms_B, whole_Q, np.ones(len(norms_B)), rest_Q)
            fits = float(norms_B.max()) * dim**0.5 < _FITS
            product_BQ = multiply(start, vectors_BD) if fits else _wide_product(vectors_BD, scaled_QD)
            rows_B = np.arange(start, start + len(vectors_BD))
            shortlist.take(product_BQ, peaks_of(product_BQ), rows_B, bounds)


class _NumpyProducts:
    """Multiplies blocks with queries in float32."""

    @property
    def cut(self) -> float:
        """Relative error of the factors: 0 for float32."""
        return 0.0

    def by(self, queries_QD: Queries) -> Callable[[int, Floats], Product]:
        """Returns a function of a block's first row and vectors; its result is overwritten by the next call."""
        queries_DQ = np.ascontiguousarray(queries_QD.T)
        out_BQ = np.zeros((0, len(queries_QD)), dtype=np.float32)

        def multiply(start: int, vectors_BD: Floats) -> Product:
            nonlocal out_BQ
            if len(out_BQ) != padded(len(vectors_BD)):
                out_BQ = np.zeros((padded(len(vectors_BD)), len(queries_QD)), dtype=np.float32)
            np.matmul(vectors_BD.astype(np.float32, copy=False), queries_DQ, out=out_BQ[: len(vectors_BD)])
            return out_BQ

        return multiply


class _TorchProducts(_NumpyProducts):
    """Keeps the vectors on a GPU if they fit."""

    def __init__(self, store: VectorStore, device: str, block_rows: int) -> None:
        import torch

        self._device = torch.device(device)
        self._resident: dict[int, torch.Tensor] = {}
        if self._device.type == "cuda" and store.nbytes < 0.8 * torch.cuda.mem_get_info(self._device)[0]:
            for start, vectors_BD in store.blocks(block_rows):
                self._resident[start] = torch.from_numpy(vectors_BD).to(self._device)

    @property
    def cut(self) -> float:
        """TF32 or bfloat16 products, if the user enabled them, need a wider bound and give the same hits."""
        import torch

        backend = torch.backends.cuda if self._device.type == "cuda" else torch.backends.mkldnn
        return 0.0 if backend.matmul.fp32_precision in ("none", "ieee") else _REDUCED

    def by(self, queries_QD: Queries) -> Callable[[int, Floats], Product]:
        import torch

        queries_DQ = torch.from_numpy(queries_QD.T.copy()).to(self._device)
        out_BQ = torch.zeros((0, len(queries_QD)), dtype=torch.float32, device=self._device)

        def multiply(start: int, vectors_BD: Floats) -> Product:
            nonlocal out_BQ
            if len(out_BQ) != padded(len(vectors_BD)):
                out_BQ = torch.zeros((padded(len(vectors_BD)), len(queries_QD)), device=self._device)
            block = self._resident[start] if self._resident else torch.from_numpy(vectors_BD).to(self._device)
            torch.mm(block.float(), queries_DQ, out=out_BQ[: len(vectors_BD)])
            return out_BQ

        return multiply


def padded(rows: int) -> int:
    """Rows of a product, padded to whole groups."""
    return -(-rows // GROUP) * GROUP


def _wide_product(vectors_BD: Floats, queries_QD: Queries) -> Product:
    """The product in float64, for vectors whose float32 products may overflow."""
    out_BQ = np.zeros((padded(len(vectors_BD)), len(queries_QD)))
    np.matmul(vectors_BD.astype(np.float64), queries_QD.T.astype(np.float64), out=out_BQ[: len(vectors_BD)])
    return out_BQ


def product_error(dim: int) -> float:
    """Error bound of a float32 product of D terms, as a factor of ‖x‖‖q‖: γ_D = D·u / (1 − D·u), in any order. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd edition, §3.1; Cauchy–Schwarz bounds Σ|x_i q_i|."""
    return dim * _UNIT / (1.0 - dim * _UNIT)
