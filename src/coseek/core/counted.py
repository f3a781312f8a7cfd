"""Counted: a number with its noun, for messages."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 passage`, `2,000 passages`. `plural` is needed if it does not end in s."""
    some = plural or (f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s")
    return f"{number:,} {noun if number == 1 else some}"
