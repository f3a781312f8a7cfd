"""Block scores: matrices of approximate scores, and the entries in them that reach a threshold.

A product has a row per vector of a block (B, a multiple of GROUP) and a column per query (Q). It is a numpy array or a
torch tensor. Rows are scanned in groups: the members of a group are read only if the group's maximum (its peak) reaches
the threshold, which is rare.
"""

from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Doubles: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int32]
Product: TypeAlias = "Numbers | torch.Tensor"

GROUP = 16
"""Rows per group."""


def peaks_of(product_BQ: Product) -> Product:
    """The maximum of every group of rows."""
    if isinstance(product_BQ, np.ndarray):
        peaks_GQ: Product = product_BQ.reshape(-1, GROUP, product_BQ.shape[1]).max(axis=1)
        return peaks_GQ
    return product_BQ.view(-1, GROUP, product_BQ.shape[1]).amax(dim=1)


def reaching(product_BQ: Product, peaks_GQ: Product, limits_Q: Doubles) -> tuple[Integers, Integers, Doubles]:
    """The (rows, queries, values) of the product where it reaches the thresholds `limits_Q`."""
    product, peaks = _at_hand(product_BQ), _at_hand(peaks_GQ)
    if isinstance(product, np.ndarray) and isinstance(peaks, np.ndarray):
        own_Q = _limits_in(product.dtype, limits_Q)
        groups_M, queries_M = np.nonzero(peaks >= own_Q)
        members_MG = product.reshape(-1, GROUP, product.shape[1])[groups_M, :, queries_M]
        hot_M, place_M = np.nonzero(members_MG >= own_Q[queries_M, None])
        values_M = members_MG[hot_M, place_M]
        return groups_M[hot_M] * GROUP + place_M, queries_M[hot_M], values_M.astype(np.float64)
    return reaching_on_device(cast("torch.Tensor", product), cast("torch.Tensor", peaks), limits_Q)


def _at_hand(product: Product) -> Product:
    """View a CPU tensor as a numpy array."""
    if isinstance(product, np.ndarray) or product.device.type != "cpu":
        return product
    return cast(Numbers, product.numpy())


def reaching_on_device(
    product_BQ: "torch.Tensor", peaks_GQ: "torch.Tensor", limits_Q: Doubles
) -> tuple[Integers, Integers, Doubles]:
    """`reaching` on the product's device; only the entries found are copied to the CPU."""
    own_Q = product_BQ.new_tensor(_limits_in(np.dtype(np.float32), limits_Q))
    groups_M, queries_M = (peaks_GQ >= own_Q).nonzero(as_tuple=True)
    members_MG = product_BQ.view(-1, GROUP, product_BQ.shape[1])[groups_M, :, queries_M]
    hot_M, place_M = (members_MG >= own_Q[queries_M, None]).nonzero(as_tuple=True)
    parts = (groups_M[hot_M] * GROUP + place_M, queries_M[hot_M], members_MG[hot_M, place_M].double())
    places, queries, values = (part.cpu().numpy() for part in parts)
    return places, queries, values


def _limits_in(kind: "np.dtype[np.generic]", limits_Q: Doubles) -> Numbers:
    """The thresholds in the product's number type, rounded down."""
    if kind.kind == "i":
        return np.floor(limits_Q).clip(-(2.0**31), 2.0**31 - 1).astype(np.int32)
    if kind == np.float64:
        return limits_Q
    return below(limits_Q)


def below(values: Doubles) -> NDArray[np.float32]:
    """Round down to float32. Values below its range become −inf, values above it the largest float32."""
    largest = float(np.finfo(np.float32).max)
    narrow = values.clip(-largest, largest).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where((narrow > values) | (values < -largest), np.nextafter(narrow, np.float32(-np.inf)), narrow)
