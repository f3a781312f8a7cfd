"""Way: which exact search over a store is the fastest on this machine. All of them find the same.

Looking at all rows in float32 (`exact`), and going through an int8 copy of them first (`int8`), which multiplies a
quarter of the bytes and then proves its result. Which is faster is a matter of the processor's instructions, and of
whether the vectors fit into memory.
"""

import importlib.util
import os
from typing import Literal, TypeAlias

import numpy as np

from coseek.hardware.speed import Choice, Timing, search_pace, times
from coseek.retrieval.vectors.encoder import usable_device
from coseek.retrieval.vectors.int8 import holds, largest_query_code
from coseek.retrieval.vectors.store import VectorStore

SearchMethod: TypeAlias = Literal["exact", "int8"]

FEWEST = 32_768
"""Rows from which a copy is worth its quarter of the size: with fewer, a search is over in milliseconds either way."""


FITS = 0.8
"""Share of memory that vectors may take and still be there when they are read again."""


def memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62


def fastest_way(store: VectorStore, device: str) -> Choice:
    """The way to search a store with, and why. `device`: as in the settings of an embedding."""
    return chosen(len(store), store.dim, store.dtype, device)


def chosen(rows: int, dim: int, dtype: str, device: str) -> Choice:
    """The way for so many rows. A trial is made only where its outcome matters."""
    if rows < FEWEST:
        return Choice("exact", f"{rows:,} rows are few")
    if importlib.util.find_spec("torch") is None:
        return Choice("exact", "without torch there is no fast int8 product")
    if usable_device(device) != "cpu":
        return Choice("exact", f"on {device if device != 'auto' else 'the GPU'}, whose float32 is fast")
    if not (holds(dim) and largest_query_code()):
        return Choice("exact", "there is no exact int8 product here")
    if (size := rows * dim * np.dtype(dtype).itemsize) > FITS * memory_bytes():
        return Choice("int8", f"{size / 1e9:.0f} GB of vectors do not fit into memory beside the rest")
    found = search_pace(dim, dtype)
    why = f"a scan in int8 has {times(found)} the speed of one in {dtype}" if found is not None else "no trial was made"
    return Choice(taken(found), why)


def taken(found: Timing | None) -> SearchMethod:
    """The way that a trial speaks for. The copy has to win clearly: it costs its size on the disk."""
    return "int8" if found is not None and found.wins else "exact"
