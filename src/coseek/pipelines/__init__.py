"""Pipelines: recipes, and what trains, measures and reports as they say."""
