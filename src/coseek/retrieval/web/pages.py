"""Pages: extracts the text of web pages and splits it into passages."""

from dataclasses import dataclass

from coseek.core.plain_text import WORD, decode
from coseek.retrieval.web.fetch import FetchedPage, Fetcher, PageFault

MOST_TAGS = 40_000
"""With more tags, the parser may take over two seconds, depending on their nesting."""
# Errors of the parsers for malformed pages: endless nesting, invalid character references.
_UNREADABLE = (AssertionError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a page."""

    title: str
    text: str


def read(fetcher: Fetcher, url: str) -> Page | PageFault:
    """Fetch and read a page; returns the fault if that fails."""
    try:
        return read_page(fetcher.fetch(url))
    except PageFault as fault:
        return fault


def read_page(fetched: FetchedPage) -> Page:
    """The article of a page, without navigation and scripts; a plain text unchanged."""
    text = decode(fetched.body, fetched.content_type)
    if fetched.content_type.partition(";")[0].strip().lower() == "text/plain":
        return _page("", text)
    import trafilatura
    from trafilatura.metadata import extract_title

    if text.count("<") > MOST_TAGS:
        raise PageFault("too long")
    try:
        tree = trafilatura.load_html(text)
        title = None if tree is None else extract_title(tree)
        article = trafilatura.extract(text, include_comments=False, include_tables=True)
    except _UNREADABLE:
        raise PageFault("unreadable") from None
    return _page(title or "", article or "")


def _page(title: str, text: str) -> Page:
    # Control characters break files and terminals.
    text = "".join(letter for letter in text if letter.isprintable() or letter.isspace()).strip()
    title = " ".join(title.split())
    text = text.removeprefix(f"{title}\n")  # the article often starts with its title
    if not text:
        raise PageFault("no text")
    return Page(title, text)


def cut(text: str, words: int) -> list[str]:
    """Split text into passages of at most `words` words (`WORD`); white space is collapsed."""
    found = WORD.findall(text)
    stretches = ("".join(found[start : start + words]) for start in range(0, len(found), words))
    return [" ".join(stretch.split()) for stretch in stretches]
