"""Free names: names that would stand twice are numbered."""

from collections import Counter


def free_name(name: str, taken: Counter[str], at: int | None = None) -> str:
    """A name that was not taken, and is now: the second `note` is `note 2`, with the number before what begins at `at`,
    such as the ending of a file."""
    stem, ending = (name, "") if at is None else (name[:at], name[at:])
    free = name
    while taken[free]:
        taken[name] += 1
        free = f"{stem} {taken[name]}{ending}"
    taken[free] += 1
    return free
