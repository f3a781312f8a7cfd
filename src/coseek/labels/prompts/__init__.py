"""Prompts of scorers: one file each, found by its name or replaced by a file of the user's."""
