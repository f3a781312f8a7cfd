"""Visible text: control and direction characters written out, so that a terminal shows them and obeys none.

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


def visible(text: str) -> str:
    """The text with `⟨U+001B⟩` for an escape character."""
    return text if text.isascii() and text.isprintable() else HIDDEN.sub(_named, text)


def visible_json(document: str) -> str:
    """A JSON document of the same value that holds such characters as `\\u001b` alone."""
    return HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], document)


def _named(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"
