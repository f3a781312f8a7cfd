"""Products: blocks of approximate scores, and the few places in them that reach a limit.

A product has a row for every vector of a block (B, a multiple of GROUP) and a column for every query (Q), as a numpy
array or a torch tensor, in whatever unit its maker likes. Rows are looked at in groups: first at each group's best
value (its peak), and at the members only where that reaches the limit. Nearly all groups never do.
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
"""Rows looked at together."""


def peaks_of(product_BQ: Product) -> Product:
    """The best value of every group of rows."""
    if isinstance(product_BQ, np.ndarray):
        peaks_GQ: Product = product_BQ.reshape(-1, GROUP, product_BQ.shape[1]).max(axis=1)
        return peaks_GQ
    return product_BQ.view(-1, GROUP, product_BQ.shape[1]).amax(dim=1)


def reaching(product_BQ: Product, peaks_GQ: Product, limits_Q: Doubles) -> tuple[Integers, Integers, Doubles]:
    """Places, queries and values of the product where it reaches the limits; members of low groups are not read."""
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
    """A tensor in the processor's memory as the array that it is."""
    if isinstance(product, np.ndarray) or product.device.type != "cpu":
        return product
    return cast(Numbers, product.numpy())


def reaching_on_device(
    product_BQ: "torch.Tensor", peaks_GQ: "torch.Tensor", limits_Q: Doubles
) -> tuple[Integers, Integers, Doubles]:
    """The same, where the product is; only what reaches the limits leaves the device."""
    own_Q = product_BQ.new_tensor(_limits_in(np.dtype(np.float32), limits_Q))
    groups_M, queries_M = (peaks_GQ >= own_Q).nonzero(as_tuple=True)
    members_MG = product_BQ.view(-1, GROUP, product_BQ.shape[1])[groups_M, :, queries_M]
    hot_M, place_M = (members_MG >= own_Q[queries_M, None]).nonzero(as_tuple=True)
    parts = (groups_M[hot_M] * GROUP + place_M, queries_M[hot_M], members_MG[hot_M, place_M].double())
    places, queries, values = (part.cpu().numpy() for part in parts)
    return places, queries, values


def _limits_in(kind: "np.dtype[np.generic]", limits_Q: Doubles) -> Numbers:
    """The limits as numbers of the product's type, rounded down."""
    if kind.kind == "i":
        return np.floor(limits_Q).clip(-(2.0**31), 2.0**31 - 1).astype(np.int32)
    if kind == np.float64:
        return limits_Q
    return below(limits_Q)


def below(values: Doubles) -> NDArray[np.float32]:
    """float32 numbers that are no greater: what is too small becomes -inf, what is too large the largest one."""
    largest = float(np.finfo(np.float32).max)
    narrow = values.clip(-largest, largest).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where((narrow > values) | (values < -largest), np.nextafter(narrow, np.float32(-np.inf)), narrow)
