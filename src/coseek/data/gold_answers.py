"""Gold answers: reads them from JSON, for every format, and normalises them for matching."""

import json
import re
import string

from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.core.text import without_invisible

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SHOWN = 60
"""Characters of a refused value in a message."""


def read_answers(value: Json, name: str) -> tuple[str, ...]:
    """Read gold answers from the value of the field `name`.

    Accepts a text, or a list of texts; a list inside the list holds aliases. A number is an answer as JSON writes it.
    A missing value (`None`) has no answers. Raises `DataError` for anything else: `null` in a list, a boolean, an
    object, deeper lists.
    """
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    return tuple(
        read_text(each, name, "a gold answer")
        for item in items
        for each in (item if isinstance(item, list) else [item])
    )


def read_text(value: Json, name: str, what: str) -> str:
    """Read a text, or a number as JSON writes it. Raises `DataError` for anything else."""
    if isinstance(value, str):
        return value
    written = json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return written
    shown = written if len(written) <= _SHOWN else written[: _SHOWN - 1] + "…"
    raise DataError(f"{name!r} holds {shown}; {what} is a text or a number")


def normalise(text: str) -> str:
    """Lower case → no ASCII punctuation → no a/an/the → single spaces, in this order (SQuAD).

    The order matters: "the-end" becomes "theend" before articles are removed. Unicode punctuation, accents and number
    formats are unchanged, without NFKC, so that values are comparable with the papers'. Characters that are displayed
    as nothing (soft hyphens, zero-width blanks) are removed first, which the papers' scripts do not do.
    """
    return " ".join(_ARTICLES.sub(" ", without_invisible(text).lower().translate(_PUNCTUATION)).split())
