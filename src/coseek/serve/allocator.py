"""Allocator: glibc's `malloc`, told that large blocks come and go. Does nothing elsewhere than on Linux with glibc.

By itself glibc learns from a freed body of 16 MiB to keep blocks of that size, and each thread keeps those of its own;
what lies between two blocks in use stays with the process.
"""

import ctypes
import sys

ARENAS = 2
"""Pools of small blocks: the event loop and one worker allocate most of them."""
OWN_MAP = 2**21
"""Bytes from which a block is a mapping of its own, which is given back when it is freed."""
KEPT_TOP = 2**24
"""Free bytes at the end of a pool from which they are given back."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of `mallopt`'s parameters, of malloc.h."""


def give_back_large_blocks() -> None:
    """Set the process up; called before its threads begin."""
    if (libc := _glibc()) is not None:
        for parameter, value in ((_ARENA_MAX, ARENAS), (_MMAP_THRESHOLD, OWN_MAP), (_TRIM_THRESHOLD, KEPT_TOP)):
            libc.mallopt(parameter, value)


def give_back() -> None:
    """Give back the free pages between small blocks, which after large bodies and answers are many. Takes
    milliseconds."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if libc is not None and hasattr(libc, "malloc_trim") else None
