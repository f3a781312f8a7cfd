"""Marks: characters that readers see as a part of a letter or word, or do not see at all."""

import re
import unicodedata
from functools import cache
from itertools import chain

_BLOCKS = (
    (0x300, 0x2E80),
    (0xA640, 0xAC00),
    (0xFB00, 0xFE00),
    (0xFE20, 0x12000),
    (0x16A00, 0x17000),
    (0x1BC00, 0x1F000),
)
"""Where marks are; not those of Han and kana, whose texts have no words, nor the selectors of a sign's look, which
stand behind signs that are no letters."""

_ZERO_WIDTH = (
    "\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
SOFT_HYPHEN = "\u00ad"
ZERO_WIDTH = re.compile(f"[{_ZERO_WIDTH}]+")
"""Joiners, zero-width blanks, directions, variation selectors: with the soft hyphen, which is displayed at the end of a
line, Unicode's Default_Ignorable_Code_Point."""


def without_invisible(text: str) -> str:
    """Remove the characters that are displayed as nothing."""
    return text if text.isascii() else ZERO_WIDTH.sub("", text).replace(SOFT_HYPHEN, "")


@cache
def marks() -> frozenset[str]:
    """All marks. Python's `\\w` matches none of them, and each ends a run of letters."""
    signs = map(chr, chain.from_iterable(range(*block) for block in _BLOCKS))
    return frozenset(sign for sign in signs if unicodedata.category(sign) in ("Mn", "Mc"))


def undotted(text: str) -> str:
    """A lower-case text without the dot above that `"İ".lower()` leaves behind an i, which has one already."""
    return unicodedata.normalize("NFC", text.replace("i\u0307", "i")) if "\u0307" in text else text
