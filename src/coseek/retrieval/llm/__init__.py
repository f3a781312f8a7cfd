"""Language models in retrieval: what they are asked, and how their answers are read."""

from pathlib import Path

PROMPTS = Path(__file__).parent / "prompts"
"""The package's own prompts, found by name."""
