"""Subject: the name of what a passage is about. Its title, or a name that stands in its text.

Without a title, a heading is the subject: a short first line that is no sentence, with text below it. Else it is the
name that the text opens with (`The Garry Moore Show is …` → `Garry Moore Show`). Either may be missing.
"""

import re
from dataclasses import replace
from functools import lru_cache

from coseek.data.passage import Passage

STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with what which who whom whose when where why how did does do has have had were been being both from
    also same its his her he she him you your i we than more most other one two first name named many much between
    about after before during while""".split()  # noqa: SIM905 (a list of quoted words reads worse)
)
"""Words that name nothing."""
_INSIDE = frozenset(["of", "the", "and", "for", "in", "on", "at", "de", "la", "le", "du", "von", "van", "der", "del",
                     "da", "di", "al", "el", "y", "et", "&"])  # fmt: skip
"""Words that names hold in lower case."""
_TOKEN = re.compile(r"[^\W_](?:[\w'’&-]|\.(?=\w))*\.?|\S")
_MARKS = frozenset("\"'“”‘’«»*#`(")
"""Marks that may stand before a name."""
_OPENING = 400
"""Characters in which a name is looked for."""
_LONGEST = 12
"""Words of a name."""
_INITIAL = 3
"""Characters of an initial or a short form (`M.`, `St.`); a longer word with a full stop ends a sentence."""
_HEADING = 120
"""Characters of a heading."""


def with_subject(passage: Passage) -> Passage:
    """The passage with its subject for a title; one that has a title stays as it is."""
    return passage if passage.title.strip() else _titled(passage)


@lru_cache(maxsize=20_000)
def _titled(passage: Passage) -> Passage:
    text = passage.text.strip()
    return replace(passage, title=heading(text) or opening_name(text))


def heading(text: str) -> str:
    """The first line, without Markdown's marks; empty where that is a sentence, a row of a table or the whole text."""
    line, _, rest = text.partition("\n")
    line = line.strip().strip("#=*_ \t") if len(line) <= _HEADING else ""
    return line if line and rest.strip() and line[-1] not in ".!?;:,。！？" and " | " not in line else ""


def opening_name(text: str) -> str:
    """The run of capitalised words and numbers that the text opens with, without stop words before it."""
    name: list[str] = []
    inside: list[str] = []
    for match in _TOKEN.finditer(text[:_OPENING]):
        token = match.group()
        if not name and (token in _MARKS or token.lower() in STOP_WORDS):
            continue
        if token in name[:1] or len(name) >= _LONGEST:
            break  # where the first word comes again, a title ran into the text: `Ed Wood Ed D. Wood was …`
        if token[0].isupper() or token[0].isdigit():
            name += [*inside, token]
            inside = []
        elif name and token.lower() in _INSIDE:
            inside.append(token)
        else:
            break
        if token[-1] == "." and len(token) > _INITIAL:
            break
    found = " ".join(name).rstrip(".")
    return "" if found.isdigit() else found
