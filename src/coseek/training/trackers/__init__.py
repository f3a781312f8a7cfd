"""Trackers: one file for each experiment service. See `training/tracker.py`."""
