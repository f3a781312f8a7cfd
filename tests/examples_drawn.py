"""How many examples hypothesis draws: a few in the quick tests, and its own default in all of them."""

from hypothesis import settings

QUICK, FULL = "quick", "full"
settings.register_profile(QUICK, max_examples=25, deadline=None)
settings.register_profile(FULL, max_examples=100, deadline=None)


def at_most(examples: int) -> int:
    """For a test whose examples are expensive: so many, and in the quick tests no more than others draw."""
    return min(examples, settings().max_examples)
