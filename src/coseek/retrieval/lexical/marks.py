"""Marks: characters that readers see as a part of a letter or word."""

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


@cache
def marks() -> frozenset[str]:
    """All marks. Python's `\\w` matches none of them, and each ends a run of letters."""
    signs = map(chr, chain.from_iterable(range(*block) for block in _BLOCKS))
    return frozenset(sign for sign in signs if unicodedata.category(sign) in ("Mn", "Mc"))


def undotted(text: str) -> str:
    """A lower-case text without the dot above that `"İ".lower()` leaves behind an i, which has one already."""
    return unicodedata.normalize("NFC", text.replace("i\u0307", "i")) if "\u0307" in text else text
