"""Backends: one file for each training backend. See `rl/backend.py`."""
