"""Search method: selects the faster exact search over a store on this machine. All methods find the same rows.

`exact` scans all rows in float32. `int8` scans a quantised copy first, a quarter of the bytes, and then verifies the
result. Their relative speed depends on the CPU's instructions and on whether the vectors fit into memory.
"""

import importlib.util
from typing import Literal, TypeAlias

import numpy as np

from coseek.hardware.device import device_of, memory_bytes
from coseek.hardware.speed import MIN_SPEEDUP, Choice, speedups
from coseek.retrieval.vectors.int8 import holds, largest_query_code
from coseek.retrieval.vectors.store import VectorStore

SearchMethod: TypeAlias = Literal["exact", "int8"]

FEWEST = 32_768
"""With fewer rows, a search takes milliseconds either way and needs no copy."""
FITS = 0.8
"""Share of memory up to which vectors stay in the page cache."""


def fastest_method(store: VectorStore, device: str) -> Choice:
    """The method for a store, with the reason. `device` is the setting of an embedding retriever."""
    return chosen(len(store), store.dim, store.dtype, device)


def chosen(rows: int, dim: int, dtype: str, device: str) -> Choice:
    """The method for `rows` rows. Probes the machine only if the outcome matters."""
    if rows < FEWEST:
        return Choice("exact", f"{rows:,} rows are few")
    if importlib.util.find_spec("torch") is None:
        return Choice("exact", "without torch there is no fast int8 product")
    if (place := device_of(device)).type != "cpu":
        return Choice("exact", f"on {place}, whose float32 is fast")
    if not (holds(dim) and largest_query_code()):
        return Choice("exact", "there is no exact int8 product here")
    if (size := rows * dim * np.dtype(dtype).itemsize) > FITS * memory_bytes():
        return Choice("int8", f"{size / 1e9:.0f} GB of vectors do not fit into memory beside the rest")
    if (found := speedups()) is None:
        return Choice("exact", "the probe of this machine failed")
    # int8 must win clearly, since its copy takes disk space.
    method: SearchMethod = "int8" if found.int8_search >= MIN_SPEEDUP else "exact"
    return Choice(method, f"a scan in int8 has {found.int8_search:.2g} × the speed of one in float32")
