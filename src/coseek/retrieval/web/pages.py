"""Pages: extracts the text of web pages and splits it into passages."""

import codecs
import re
from dataclasses import dataclass
from email.message import Message

from coseek.retrieval.web.fetch import FetchedPage, Fetcher, PageFault

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*+=\s*+["']?\s*+([a-zA-Z0-9_:.-]{2,40})""", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"(?<!\s)\s*+(?:[{_CJK}]{{1,2}}|[^\s{_CJK}]{{1,100}})")
"""A word with its preceding white space. No match starts inside white space, so trailing blanks are scanned once."""

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


def decode(body: bytes, content_type: str) -> str:
    """Decode by byte order mark, header, the page's charset, UTF-8, or a guess, in this order; errors become U+FFFD."""
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
    """Whether Python has a text encoding of this name (`hex` and `zip` are not text encodings)."""
    try:
        return isinstance(b"a".decode(charset, errors="replace"), str)
    except (LookupError, ValueError, TypeError):
        return False


def cut(text: str, words: int) -> list[str]:
    """Split text into passages of at most `words` words; white space is collapsed. Two CJK characters count as a word,
    and so do 100 characters without a blank."""
    found = _WORD.findall(text)
    stretches = ("".join(found[start : start + words]) for start in range(0, len(found), words))
    return [" ".join(stretch.split()) for stretch in stretches]
