"""Language models in retrieval: prompts and parsing of answers."""

from pathlib import Path

PROMPTS = Path(__file__).parent / "prompts"
"""The folder of built-in prompts."""
