"""Graders of the laboratory, found by name: the oracle of a laptop world."""
