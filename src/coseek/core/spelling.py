"""Spelling: text with a blank around every mark, as laptop worlds write it, and text as people write it.

`separated` spells what a person typed as a laptop policy learnt it; `as_written` spells text of a laptop world as a
person reads it. Both leave text alone that is already spelled as wanted.
"""

import re
import unicodedata
from collections.abc import Callable

_REQUESTS = frozenset(["name", "tell", "say", "give", "find", "list", "please", "i", "we"])
"""First words of questions that end in a full stop."""
_LOWER_FIRST = frozenset(("the", "whoever"))
"""First words that laptop worlds write in lower case at the start of a question, too."""
_FINAL = " \t\r\n.?!,;:…"
_APOSTROPHES = str.maketrans("‘’‛ʼ`´", "''''''")
_QUOTES = re.compile(r"[\"“”„‟«»‹›]|(?<!\w)'|'(?!\w)")
"""Quotation marks, which laptop worlds do not write. Apostrophes inside words are not among them."""
_POSSESSIVE = re.compile(r"(?<=\w)'s\b")
_MARK = re.compile(r"(?<=\d)[.,:](?=\d)|(?<=\w)-(?=\w)|(?<=\w)'(?=\w)|([^\w\s])")
"""A mark; without a group where it is a part of its number or word."""
_CLOSING = "[,.?!:;)]"
_ATTACHED = re.compile(rf"(?<=\w){_CLOSING}(?!\w)|\((?=\w)")
_SEPARATED = re.compile(r"\s[,.)](?=\s|<|$)")
_BEGINS_APART = re.compile(r"(?:<\w+>)? ")
_BLANK_BEFORE = re.compile(rf"(?<!\s)\s+(?={_CLOSING}(?![\w.])|'s\b)")
_BLANK_AFTER = re.compile(r"(?<=[(#])\s+")


def separated(text: str, is_token: Callable[[str], bool]) -> str:
    """Spell a typed question as laptop worlds do: a capital first, blanks around every mark, one mark at the end.

    `is_token` returns whether a word is one token of the policy. A question without any capital gets those of the names
    that the policy knows. Of a question that is spelled so already only outer blanks are removed.
    """
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES).replace("…", " … "))
    text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")  # soft hyphens, zero-width marks
    text = _QUOTES.sub(" ", text)
    body = text.rstrip(_FINAL)
    end = _end(text[len(body) :], body)
    if body.isupper() and len(body.split()) > 1:
        body = body.lower()
    words = _MARK.sub(lambda mark: f" {mark[1]} " if mark[1] else mark[0], _POSSESSIVE.sub(" \0", body)).split()
    words = [word.replace("\0", "'s") for word in words]
    if not words:
        return " ".join(text.split())
    if body == body.lower():
        words = [_capital(word) if not is_token(word) and is_token(_capital(word)) else word for word in words]
    if words[0] not in _LOWER_FIRST:
        words[0] = _capital(words[0])
    return " ".join([*words, end])


def _end(typed: str, body: str) -> str:
    """The final mark: the one that was typed, else the one that fits the first word."""
    if "?" in typed or "." in typed:
        return "?" if "?" in typed else "."
    return "." if next(iter(body.lower().split()), "") in _REQUESTS else "?"


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def as_written(text: str) -> str:
    """A text of a laptop world as people write it: no blank before a mark, and none after an opening one.

    Other text is returned unchanged, such as French with its blank before a question mark. A text counts as one of a
    laptop world if no mark is attached to a word, and if it or its first tag begins with a blank, or if it has a comma
    between blanks.
    """
    if not (_BEGINS_APART.match(text) or _SEPARATED.search(text)) or _ATTACHED.search(text):
        return text
    return _BLANK_AFTER.sub("", _BLANK_BEFORE.sub("", text)).strip()
