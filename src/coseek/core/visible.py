"""Visible text: control and direction characters written out, so that a terminal shows them and obeys none; characters
that are displayed as nothing left out.

A passage, an id, a server's message or a model's text may hold any character. Escape sequences move the cursor, set the
clipboard and hide lines; direction marks let a text read as another one. The viewer writes them the same way.
"""

import json
import re

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""Control characters but tabs and line feeds, direction marks, line separators, tags, and half surrogates, which no
stream encodes. Joiners and soft hyphens are parts of words."""

_ZERO_WIDTH = (
    "\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
SOFT_HYPHEN = "\u00ad"
ZERO_WIDTH = re.compile(f"[{_ZERO_WIDTH}]+")
"""Joiners, zero-width blanks, directions, variation selectors: with the soft hyphen, which is displayed at the end of a
line, Unicode's Default_Ignorable_Code_Point."""


def visible(text: str) -> str:
    """The text with `⟨U+001B⟩` for an escape character."""
    return text if text.isascii() and text.isprintable() else HIDDEN.sub(_named, text)


def without_invisible(text: str) -> str:
    """Remove the characters that are displayed as nothing."""
    return text if text.isascii() else ZERO_WIDTH.sub("", text).replace(SOFT_HYPHEN, "")


def visible_json(document: str) -> str:
    """A JSON document of the same value that holds such characters as `\\u001b` alone."""
    return HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], document)


def _named(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"
