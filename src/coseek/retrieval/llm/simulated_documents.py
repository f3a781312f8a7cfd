"""Documents: passages read out of what a language model wrote when it was asked to play a search engine.

Reading never fails: any text gives some passages or none.
"""

import re

from coseek.core.fingerprint import digest_of
from coseek.data.passage import Passage

_HEADING = re.compile(
    # Possessive (`*+`), so that blanks are never given back: a model decides how many there are.
    r"^[ \t]*+[*#]*+[ \t]*+doc(?:ument)?[ \t]*+\[?[0-9]{1,4}\]?[ \t]*+[:.)\-–][ \t*]*+(.*)$",
    re.I | re.M,
)
_BRACKETS = re.compile("([<>])")
_TAG_BEGINS = re.compile("</?[a-zA-Z]")


def parse_documents(answer: str, count: int) -> list[Passage]:
    """At most `count` passages: what stands behind each `Document n: title` heading.

    A text without headings is one passage. What stands in front of the first heading is left out, and so is a document
    without words. Tags are taken out: what plays a search engine cannot write for the agent. An id follows from title
    and text, so the same document has the same id in every run; its second copy is left out.
    """
    text = without_tags(answer)
    headings = list(_HEADING.finditer(text))
    if not headings:
        pieces = [("", text)]
    else:
        ends = [*(heading.start() for heading in headings[1:]), len(text)]
        pieces = [(heading.group(1), text[heading.end() : end]) for heading, end in zip(headings, ends, strict=True)]
    found: dict[str, Passage] = {}
    for title, body in pieces:
        title, body = " ".join(title.split()).strip("*# "), " ".join(body.split())
        if not body:  # a model that writes its document behind the heading's colon
            title, body = "", title
        if body:
            ident = f"simulated-{digest_of(title, body)[:16]}"
            found.setdefault(ident, Passage(ident, title, body))
    return list(found.values())[:count]


def without_tags(text: str) -> str:
    """The text without `<tags>`, also without those that appear when others are taken out. Takes linear time."""
    kept: list[str] = []
    opened: list[int] = []  # where `<` stands in `kept`, with no `>` behind it
    for piece in _BRACKETS.split(text):
        kept.append(piece)
        if piece == "<":
            opened.append(len(kept) - 1)
        elif piece == ">" and opened:
            if _TAG_BEGINS.match("".join(kept[opened[-1] :])):
                del kept[opened.pop() :]
            else:
                opened.clear()  # no tag reaches over this `>`
    return "".join(kept)
