"""Digest table: finds rows by 16-byte digests, in 16 bytes of memory a row beside the digests themselves.

N rows · M digests that are looked up. A digest is two int64 numbers.
"""

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.int64]


class DigestTable:
    """The rows of N digests."""

    def __init__(self, digests_N2: Digests) -> None:
        self._digests_N2 = digests_N2
        keys_N = np.ascontiguousarray(digests_N2[:, 0])
        self._order_N = stable_order(keys_N)
        self._sorted_N = keys_N[self._order_N]

    def rows(self, digests_M2: Digests) -> NDArray[np.int64]:
        """The first row of each digest, −1 for one that is not there."""
        if not len(self._sorted_N):
            return np.full(len(digests_M2), -1)
        places_M = np.minimum(np.searchsorted(self._sorted_N, digests_M2[:, 0]), len(self._sorted_N) - 1)
        met = np.flatnonzero(self._sorted_N[places_M] == digests_M2[:, 0])
        # Two digests that share their first half may hide one another, which costs work and no result.
        met = met[self._digests_N2[self._order_N[places_M[met]], 1] == digests_M2[met, 1]]
        rows_M = np.full(len(digests_M2), -1)
        rows_M[met] = self._order_N[places_M[met]]
        return rows_M


def first_rows(digests_N2: Digests, digests_M2: Digests) -> NDArray[np.int64]:
    """The first row of each of M digests among N, −1 for one that is not there; without a table of the N, so cheaper
    than `DigestTable` for a few digests."""
    few = DigestTable(digests_M2)
    found_N = few.rows(digests_N2)
    met_N = np.flatnonzero(found_N >= 0)[::-1]
    rows_M = np.full(len(digests_M2), -1)
    rows_M[found_N[met_N]] = met_N  # of several the first row is written last
    own_M = few.rows(digests_M2)  # −1 for one that is hidden
    return np.where(own_M >= 0, rows_M[own_M], -1)


def stable_order(keys_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """The stable `argsort`. Where all keys differ, as those of digests do, any order is stable, and the default sort of
    numpy is several times faster."""
    order_N = np.argsort(keys_N)
    sorted_N = keys_N[order_N]
    return order_N if (sorted_N[1:] != sorted_N[:-1]).all() else np.argsort(keys_N, kind="stable")


def as_digests(data: bytes | bytearray, width: int) -> Digests:
    """Joined digests as rows of `width` int64 numbers."""
    return np.frombuffer(data, dtype=np.int64).reshape(-1, width)
