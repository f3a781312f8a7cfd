"""Plain text: decodes bytes of an unknown encoding, and finds words in any script."""

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from email.message import Message

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*+=\s*+["']?\s*+([a-zA-Z0-9_:.-]{2,40})""", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_RARE = ["johab", "cp949", "iso8859_10"]
"""Encodings that are never guessed: Japanese and Polish texts are taken for these. EUC-KR is guessed for Korean."""
_WESTERN = (
    "äöüß", "àâæçéèêëîïôœùûüÿ", "áéíñóúü", "àèéìíîòóù", "áâãàçéêíóôõúü", "áéíóúàèëïöüç", "åäöéüàšž", "æøåéèêóòâôü",
    "áéíóúýþæöð", "àçèéíïòóúü",
)  # fmt: skip
"""Letters beyond ASCII of German, French, Spanish, Italian, Portuguese, Dutch, Swedish and Finnish, Danish and
Norwegian, Icelandic, Catalan."""
_CENTRAL = (
    "ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "čćđšž", "ăâîșțşţ", "äöüß",
)  # fmt: skip
"""Those of Polish, Czech, Slovak, Hungarian, Slovene and Croatian, Romanian; German words among them."""
_LATIN = (
    ("cp1252", _WESTERN),
    ("iso8859-15", _WESTERN),
    ("cp1250", _CENTRAL),
    ("iso8859-2", _CENTRAL),
    ("cp1254", ("çğıöşüâîû",)),
    ("cp1257", ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž")),
    ("mac-roman", _WESTERN),
    ("cp850", _WESTERN),
)
"""Encodings of Latin letters with the letters of their languages, the most common first."""
_ODD_SIGN = re.compile(
    r"[^\W\d_](?:[\xb2\xb3\xb9]|[^\w\s\x00-\x7f\u2019\xb7\xad\u2013\u2014\u2026\xa0])[^\W\d_]"
    r"|[a-zß-öø-ÿ][À-ÖØ-Þ\u0152\u0160\u0178\u017d]|[ªº][^\W\d_]|[\x80-\x9f]"
)
"""A sign inside a word, a capital after a small letter, or a control character: signs of another encoding."""
_MOST_ACCENTED, _MOST_KNOWN, _SAMPLE = 0.5, 0.95, 200_000
_AS_BROWSERS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "tis-620": "cp874", "iso8859-11": "cp874",
    "gb2312": "gbk", "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
"""Declared encoding → the superset of it that browsers use, since most texts that declare the former are the latter."""
CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""CJK characters, as the inside of a character class."""
WORD = re.compile(rf"(?<!\s)\s*+(?:[{CJK}]{{1,2}}|[^\s{CJK}]{{1,100}})")
"""A word with its preceding white space; two CJK characters count as a word, and so do 100 characters without a blank.
No match starts inside white space, so trailing blanks are scanned once."""

_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]+|(?<=[。！？])|\n(?=[ \t]*[^a-z \t])")
"""Ends a sentence. A line that continues in lower case was wrapped."""


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends."""
    cuts = [match.span() for match in _SENTENCE_END.finditer(text)]
    return list(zip([0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)], strict=True))


@dataclass(frozen=True, slots=True)
class DecodedText:
    """A text and the encoding that it was decoded with."""

    text: str
    encoding: str
    """Python's name of the encoding; empty where none fits, and the text is then UTF-8 with U+FFFD."""
    is_guess: bool = False
    """Whether neither a mark, a declaration nor the bytes themselves say the encoding."""
    lost: int = 0
    """Number of U+FFFD that stand for bytes which could not be decoded."""


def decode(body: bytes, content_type: str) -> str:
    """Decode a page, as `decoded` does."""
    return decoded(body, content_type).text


def decoded(body: bytes, content_type: str = "", is_page: bool = True) -> DecodedText:
    """Decode by byte order mark, header, the page's charset (where it is a page), UTF-8, or a guess, in this order.

    Bytes that the encoding does not have become U+FFFD. Text that is UTF-8 in most of its letters stays UTF-8.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return decoded_as(body, name)
    header = Message()
    header["Content-Type"] = content_type
    said = _META.search(body[:4096]) if is_page else None
    for charset in (header.get_content_charset(), said.group(1).decode("ascii") if said else None):
        if charset is not None and _is_text_codec(charset) and not (_is_utf8(charset) and not _mostly_utf8(body)):
            return decoded_as(body, declared_encoding(body, charset))
    if _mostly_utf8(body):
        return decoded_as(body, "utf-8")
    name = _latin_encoding(body)
    if not name:
        from charset_normalizer import from_bytes

        best = from_bytes(body[:100_000], cp_exclusion=_RARE).best()
        name = best.encoding if best else ""
    found = decoded_as(body, name or "utf-8")
    return replace(found, encoding=name, is_guess=True)


def declared_encoding(body: bytes, charset: str) -> str:
    """The encoding to decode a text with that declares the encoding `charset`: the superset that browsers use, if it
    decodes the text. UTF-8 that is declared as Western European is UTF-8: letters of the latter hardly ever make it."""
    name = codecs.lookup(charset).name
    wider = _AS_BROWSERS.get(name, charset)
    western = "cp1252" in (wider, name)
    for name in ("utf-8", wider) if western else (wider,):
        with suppress(UnicodeDecodeError):
            body.decode(name)
            return name
    return charset


def decoded_as(body: bytes, name: str) -> DecodedText:
    """Decode by the known encoding `name`, with U+FFFD for bytes that it does not have."""
    text = body.decode(name, errors="replace")
    own = body.decode(name, errors="ignore").count("\ufffd") if "\ufffd" in text else 0
    return DecodedText(text, name, lost=text.count("\ufffd") - own)


def _is_utf8(charset: str) -> bool:
    return codecs.lookup(charset).name in ("utf-8", "utf-8-sig")


def _mostly_utf8(body: bytes) -> bool:
    """Whether a text is UTF-8, perhaps with a few broken bytes: another encoding hardly has valid pairs of bytes."""
    found = decoded_as(body, "utf-8")
    return not found.lost or sum(letter > "\x7f" and letter != "\ufffd" for letter in found.text) > 2 * found.lost


def _latin_encoding(body: bytes) -> str:
    """The encoding of a text in Latin letters: the first in which its letters are those of one language, and its signs
    stand where signs do; empty without one.

    A library that compares frequencies takes short Western European texts for Baltic or Vietnamese ones.
    """
    for name, alphabets in _LATIN:
        try:
            text = body[:_SAMPLE].decode(name)
        except UnicodeDecodeError:
            continue
        letters = [letter for letter in text if letter.isalpha() and letter not in "ªº"]
        accented = [letter.lower() for letter in letters if letter > "\x7f"]
        if len(accented) > _MOST_ACCENTED * len(letters) or _ODD_SIGN.search(text):
            continue
        if name == "cp1252" and "\xa4" in text:  # the euro of ISO 8859-15; hardly anybody writes the general sign
            continue
        if any(sum(letter in alphabet for letter in accented) >= _MOST_KNOWN * len(accented) for alphabet in alphabets):
            return name
    return ""


def _is_text_codec(charset: str) -> bool:
    """Whether Python has a text encoding of this name (`hex` and `zip` are not text encodings)."""
    try:
        return isinstance(b"a".decode(charset, errors="replace"), str)
    except (LookupError, ValueError, TypeError):
        return False
