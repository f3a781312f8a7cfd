"""How many examples hypothesis draws: a few in the quick tests, many in all of them."""

from hypothesis import settings

QUICK, FULL = "quick", "full"
IN_QUICK = 25
settings.register_profile(QUICK, max_examples=IN_QUICK, deadline=None)
settings.register_profile(FULL, max_examples=100, deadline=None)


def at_most(examples: int) -> int:
    """For a test that names its number of examples: so many, and in the quick tests no more than others draw."""
    drawn = settings().max_examples
    return min(examples, drawn) if drawn == IN_QUICK else examples
