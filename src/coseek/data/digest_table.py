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
        self._order_N = np.argsort(digests_N2[:, 0], kind="stable")
        self._sorted_N = digests_N2[self._order_N, 0]

    def rows(self, digests_M2: Digests) -> NDArray[np.int64]:
        """The first row of each digest, −1 for one that is not there."""
        if not len(self._sorted_N):
            return np.full(len(digests_M2), -1)
        places_M = np.searchsorted(self._sorted_N, digests_M2[:, 0])
        rows_M = self._order_N[np.minimum(places_M, len(self._order_N) - 1)]
        # Two digests that share their first half may hide one another, which costs work and no result.
        return np.where((self._digests_N2[rows_M] == digests_M2).all(axis=1), rows_M, -1)


def as_digests(data: bytes | bytearray, width: int) -> Digests:
    """Joined digests as rows of `width` int64 numbers."""
    return np.frombuffer(data, dtype=np.int64).reshape(-1, width)
