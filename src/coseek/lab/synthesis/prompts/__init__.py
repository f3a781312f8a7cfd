"""Prompts of the synthesis. Files that a user can replace."""
