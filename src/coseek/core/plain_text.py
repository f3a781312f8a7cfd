"""Plain text: decodes bytes of an unknown encoding, and finds words in any script."""

import codecs
import re
from email.message import Message

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*+=\s*+["']?\s*+([a-zA-Z0-9_:.-]{2,40})""", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_RARE = ["johab", "cp949", "iso8859_10"]
"""Encodings that are never guessed: Japanese and Polish texts are taken for these. EUC-KR is guessed for Korean."""
CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""CJK characters, as the inside of a character class."""
WORD = re.compile(rf"(?<!\s)\s*+(?:[{CJK}]{{1,2}}|[^\s{CJK}]{{1,100}})")
"""A word with its preceding white space; two CJK characters count as a word, and so do 100 characters without a blank.
No match starts inside white space, so trailing blanks are scanned once."""

_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]+|(?<=[。！？])|\n(?=[ \t]*[^a-z \t])")
"""Ends a sentence. A line that goes on in lower case is one that was wrapped."""


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends."""
    cuts = [match.span() for match in _SENTENCE_END.finditer(text)]
    return list(zip([0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)], strict=True))


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

        best = from_bytes(body[:100_000], cp_exclusion=_RARE).best()
        return body.decode(best.encoding if best else "utf-8", errors="replace")


def _is_text_codec(charset: str) -> bool:
    """Whether Python has a text encoding of this name (`hex` and `zip` are not text encodings)."""
    try:
        return isinstance(b"a".decode(charset, errors="replace"), str)
    except (LookupError, ValueError, TypeError):
        return False
