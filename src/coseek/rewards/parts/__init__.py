"""Reward parts, found by name: files with `SETTINGS` (over `PartSettings`) and `reward(trajectory, settings)`."""
