"""Exact search: finds the k best rows of a vector store by scanning all rows in float32 blocks.

The products are computed in float32 by numpy or torch, on a CPU or a GPU. Their rounding error has a proven bound; the
shortlist rescores in float64 the rows that the bound cannot rank.
"""

import importlib.util
from collections.abc import Sequence
from typing import cast

import numpy as np

from coseek.retrieval.vectors.block_scores import GROUP, Doubles, Product, peaks_of
from coseek.retrieval.vectors.shortlist import Bounds, Queries, ScanSearch, Shortlist, score_error
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore

BLOCK_ROWS = 65_536
"""Rows per product; with 64 queries the result takes 16 MB."""
_UNIT = 2.0**-24
"""Unit roundoff of float32."""
_REDUCED = 2.0**-7
"""Bound on the relative error of a product of two numbers rounded to bfloat16 (8 bits of precision)."""
_FITS = 1e37
"""Products of vectors with smaller norms cannot overflow float32."""
_STREAMED_TILES = 16
"""Tiles for which a block is sent to a device once; each needs its own shortlist."""


class ExactSearch(ScanSearch):
    """Scans every row in float32."""

    def __init__(
        self,
        store: VectorStore,
        device: str = "cpu",
        block_rows: int = BLOCK_ROWS,
        together: int = 64,
        tiles: int | None = None,
    ) -> None:
        """`device` is `cpu`, `cuda`, `cuda:1`, …; a GPU keeps as many blocks as fit into most of its free memory.

        A product has `block_rows` rows and `together` queries. `tiles` such products share one pass over the store, so
        that blocks that are not kept are sent once for all of them; by default 1, or 16 where some are not kept. No
        argument changes the result.
        """
        with_torch = device != "cpu" or importlib.util.find_spec("torch") is not None
        self._products = _TorchProducts(store, device, block_rows) if with_torch else _NumpyProducts()
        super().__init__(store, together, tiles or (_STREAMED_TILES if self._products.streams else 1))
        self._block_rows = block_rows

    def _scan(self, tiles: Sequence[tuple[Queries, Shortlist]]) -> None:
        scans = [_TileScan(queries_QD, shortlist, self._products) for queries_QD, shortlist in tiles]
        outs: dict[tuple[int, int], Product] = {}
        for start, vectors_BD in self._store.blocks(self._block_rows):
            norms_B = self._store.norms_N[start : start + len(vectors_BD)]
            fits = float(norms_B.max()) * self._store.dim**0.5 < _FITS
            block_BD = self._products.block(start, vectors_BD) if fits else None
            for scan in scans:
                shape = (padded(len(vectors_BD)), len(scan.scaled_QD))
                if shape not in outs:
                    outs = {other: out for other, out in outs.items() if other[0] == shape[0]}
                    outs[shape] = self._products.new(shape)
                if block_BD is None:
                    product_BQ = _wide_product(vectors_BD, scan.scaled_QD)
                else:
                    product_BQ = self._products.multiply(block_BD, scan.queries_DQ, outs[shape])
                scan.take(product_BQ, np.arange(start, start + len(vectors_BD)), norms_B)


class _TileScan:
    """A tile of queries, prepared for products, with the error bounds of its scores."""

    def __init__(self, queries_QD: Queries, shortlist: Shortlist, products: "_NumpyProducts") -> None:
        dim = queries_QD.shape[1]
        self._shortlist = shortlist
        # Scaling by a power of two is exact and brings queries to about 1, so that only huge vectors can overflow.
        power_Q = np.frexp(np.abs(queries_QD).max(axis=1))[1]
        self.scaled_QD = np.ldexp(queries_QD, -power_Q[:, None]).astype(np.float32)
        self.queries_DQ = products.queries(self.scaled_QD)
        self._unit_Q = np.ldexp(1.0, power_Q)
        norms_Q = np.sqrt(np.square(queries_QD, dtype=np.float64).sum(axis=1))
        self._whole_Q = norms_Q * (product_error(dim) + products.cut + score_error(dim))
        # CPUs may flush numbers below 2⁻¹²⁶ to 0 in the vector, in a product and in a sum.
        self._rest_Q = self._unit_Q * (4.0 * dim * 2.0**-126)

    def take(self, product_BQ: Product, rows_B: Rows, norms_B: Doubles) -> None:
        """Pass a block's product to the shortlist."""
        bounds = Bounds(self._unit_Q, norms_B, self._whole_Q, np.ones(len(norms_B)), self._rest_Q)
        self._shortlist.take(product_BQ, peaks_of(product_BQ), rows_B, bounds)


class _NumpyProducts:
    """Multiplies blocks with queries in float32."""

    streams = False
    """Whether some blocks must be sent to the device for every pass."""

    @property
    def cut(self) -> float:
        """Relative error of the factors: 0 for float32."""
        return 0.0

    def queries(self, queries_QD: Queries) -> Product:
        """The queries as the second factor, D × Q."""
        queries_DQ: Queries = np.ascontiguousarray(queries_QD.T)
        return queries_DQ

    def block(self, start: int, vectors_BD: Floats) -> Product:
        """A block as the first factor; `start` is its first row."""
        return vectors_BD.astype(np.float32, copy=False)

    def new(self, shape: tuple[int, int]) -> Product:
        """A product of zeros."""
        return np.zeros(shape, dtype=np.float32)

    def multiply(self, block_BD: Product, queries_DQ: Product, out_BQ: Product) -> Product:
        """Overwrite the first rows of `out_BQ`, and return it."""
        out = cast(Queries, out_BQ)
        np.matmul(cast(Queries, block_BD), cast(Queries, queries_DQ), out=out[: len(block_BD)])
        return out


class _TorchProducts(_NumpyProducts):
    """Multiplies on a device, which keeps as many blocks as fit."""

    def __init__(self, store: VectorStore, device: str, block_rows: int) -> None:
        import torch

        self._device = torch.device(device)
        self._resident: dict[int, torch.Tensor] = {}
        if self._device.type == "cpu":
            return
        room = 0.8 * torch.accelerator.get_memory_info(self._device)[0]
        for start, vectors_BD in store.blocks(block_rows):
            room -= vectors_BD.nbytes
            if room < 0:
                self.streams = True
                return
            self._resident[start] = torch.from_numpy(vectors_BD).to(self._device)

    @property
    def cut(self) -> float:
        """TF32 or bfloat16 products, if the user enabled them, need a wider bound and give the same hits."""
        import torch

        backend = torch.backends.cuda if self._device.type == "cuda" else torch.backends.mkldnn
        return 0.0 if backend.matmul.fp32_precision in ("none", "ieee") else _REDUCED

    def queries(self, queries_QD: Queries) -> Product:
        import torch

        return torch.from_numpy(queries_QD.T.copy()).to(self._device)

    def block(self, start: int, vectors_BD: Floats) -> Product:
        import torch

        kept = self._resident.get(start)
        return (torch.from_numpy(vectors_BD).to(self._device) if kept is None else kept).float()

    def new(self, shape: tuple[int, int]) -> Product:
        import torch

        return torch.zeros(shape, dtype=torch.float32, device=self._device)

    def multiply(self, block_BD: Product, queries_DQ: Product, out_BQ: Product) -> Product:
        import torch

        out = cast(torch.Tensor, out_BQ)
        torch.mm(cast(torch.Tensor, block_BD), cast(torch.Tensor, queries_DQ), out=out[: len(block_BD)])
        return out


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
