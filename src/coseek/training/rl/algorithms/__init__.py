"""Algorithms: one file each, which computes per-token advantages. See `rl/algorithm.py`."""
