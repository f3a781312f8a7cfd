"""Algorithms by name, one file each: what a step's rewards say of every token. See `rl/algorithm.py`."""
