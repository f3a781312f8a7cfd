"""Counted: a number with its noun, for messages."""


def counted(number: int, noun: str) -> str:
    """`1 passage`, `2,000 passages`. The plural of the noun ends in s."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
