"""Trackers: one file for each experiment service."""
