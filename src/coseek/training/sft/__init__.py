"""Supervised training: demonstrations, drills, lessons."""
