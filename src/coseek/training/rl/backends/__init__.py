"""Training backends by name, one file each. See `rl/backend.py`."""
