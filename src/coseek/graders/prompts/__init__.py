"""Prompts of the frozen parts, the generator and the judge. Files that a user can replace."""
