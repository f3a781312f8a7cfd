"""Pages: what is fetched from the web, read as text and cut into passages."""

import codecs
import re
from dataclasses import dataclass
from email.message import Message

from coseek.retrieval.web.fetch import FetchedPage, Fetcher, PageFault

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*+=\s*+["']?\s*+([a-zA-Z0-9_:.-]{2,40})""", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"(?<!\s)\s*+(?:[{_CJK}]{{1,2}}|[^\s{_CJK}]{{1,100}})")
"""A word with the blanks in front of it. It never begins among them: blanks that end a page are looked at once."""

MOST_TAGS = 40_000
"""A page with more takes the parser longer than two seconds, the longer the worse it is nested."""
# What the parsers beneath stumble over in pages that are none: nesting without end, numbers that are no characters.
_UNREADABLE = (AssertionError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Page:
    """A page as text."""

    title: str
    text: str


def read(fetcher: Fetcher, url: str) -> Page | PageFault:
    """The page at an address, or why it could not be had."""
    try:
        return read_page(fetcher.fetch(url))
    except PageFault as fault:
        return fault


def read_page(fetched: FetchedPage) -> Page:
    """The article of a page, without navigation, scripts and the like; a plain text as it is."""
    text = decode(fetched.body, fetched.content_type)
    if fetched.content_type.partition(";")[0].strip().lower() == "text/plain":
        return _page("", text)
    return _article(text)


def _article(html: str) -> Page:
    import trafilatura
    from trafilatura.metadata import extract_title

    if html.count("<") > MOST_TAGS:
        raise PageFault("too long")
    try:
        tree = trafilatura.load_html(html)
        title = None if tree is None else extract_title(tree)
        article = trafilatura.extract(html, include_comments=False, include_tables=True)
    except _UNREADABLE:
        raise PageFault("unreadable") from None
    return _page(title or "", article or "")


def _page(title: str, text: str) -> Page:
    # NULs and other controls break files and terminals.
    text = "".join(letter for letter in text if letter.isprintable() or letter.isspace()).strip()
    title = " ".join(title.split())
    text = text.removeprefix(f"{title}\n")  # the heading is often the first line of the article, too
    if not text:
        raise PageFault("no text")
    return Page(title, text)


def decode(body: bytes, content_type: str) -> str:
    """Bytes as text: by byte order mark, else as the header says, else as the page says, else UTF-8, else guessed.

    Bytes that are none in the encoding become U+FFFD.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body.decode(name, errors="replace")
    header = Message()
    header["Content-Type"] = content_type
    said = _META.search(body[:4096])
    for charset in (header.get_content_charset(), said.group(1).decode("ascii") if said else None):
        if charset is not None and _is_text_codec(charset):
            return body.decode(charset, errors="replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        best = from_bytes(body[:100_000]).best()
        return body.decode(best.encoding if best else "utf-8", errors="replace")


def _is_text_codec(charset: str) -> bool:
    """Whether Python knows the encoding, as one between bytes and text (`hex` and `zip` are others)."""
    try:
        return isinstance(b"a".decode(charset, errors="replace"), str)
    except (LookupError, ValueError, TypeError):
        return False


def cut(text: str, words: int) -> list[str]:
    """Stretches of at most so many words, in order; white space inside them is squeezed.

    Two characters of Chinese, Japanese or Korean count as a word, and so do every hundred of a run without a blank.
    """
    found = _WORD.findall(text)
    stretches = ("".join(found[start : start + words]) for start in range(0, len(found), words))
    return [" ".join(stretch.split()) for stretch in stretches]
