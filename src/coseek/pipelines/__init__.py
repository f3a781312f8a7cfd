"""Pipelines: recipes, and the training, measurement and reports that they describe."""
