"""Text: decoding, words, safe display in a terminal, spelling, repetition, and numbers with their nouns."""

import codecs
import json
import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

# Decoding of bytes in an unknown encoding, and words in any script.

_META = re.compile(
    rb"""(?:<meta[^>]{0,200}?charset|\A\s*+<\?xml[^>]{0,200}?encoding)\s*+=\s*+["']?\s*+([a-zA-Z0-9_:.-]{2,40})""",
    re.IGNORECASE,
)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_GUESSED = [
    "cp1252", "iso8859-15", "cp1250", "iso8859-2", "cp1251", "koi8-r", "koi8-u", "iso8859-5", "cp866", "cp1254",
    "cp1257", "iso8859-13", "cp1253", "iso8859-7", "cp1255", "iso8859-8", "cp1256", "iso8859-6", "cp874", "cp1258",
    "cp932", "shift_jis_2004", "euc_jis_2004", "iso2022_jp_2", "iso2022_jp_2004", "iso2022_jp_ext", "iso2022_kr",
    "cp949", "euc_kr", "gb18030", "big5hkscs", "mac-roman", "cp850", "cp852", "mac-cyrillic",
]  # fmt: skip
"""Candidate encodings of texts without a declaration, the most common first. chardet knows rarer ones, which it guesses
wrongly for short texts."""
_LATIN, _OTHER = r"A-Za-z\u00c0-\u024f", r"\u0370-\u052f\u0590-\u06ff\u0e00-\u0e7f"
_ODD_SIGN = re.compile(
    rf"[{_LATIN}](?:[\xb2\xb3\xb9]|[^\w\s\x00-\x7f\u2019\xb7\xad\u2013\u2014\u2026\xa0\u0300-\u036f])[{_LATIN}]"
    rf"|[{_LATIN}][{_OTHER}]|[{_OTHER}][{_LATIN}]"
    r"|[a-zß-öø-ÿ][À-ÖØ-Þ\u0152\u0160\u0178\u017d]|[ªº][^\W\d_]|[\x80-\x9f\xa4]"
)
"""Signs of a wrong encoding: a symbol inside a word, a word of two scripts, a capital after a small letter, a control
character, or the general currency sign, which is the euro in ISO 8859-15."""
_MAX_ODD = 0.05
"""Odd signs per non-ASCII character above which an encoding is implausible; fewer may be mistakes in the text."""
_OF_ENGLISH = re.compile(r"[\x00-\x7f\xa0©®™“”‘’–—…°²µ]|(?<![A-Za-z])[•£€§«»½¼¾×·±](?![A-Za-z])")
_MAX_FOREIGN = 0.003
"""Share of other characters up to which a text is English with a few foreign names."""
_SAMPLE = 20_000
"""Bytes from which the encoding is guessed. They begin shortly before the first non-ASCII byte."""
_BEYOND_ASCII = re.compile(rb"[\x80-\xff\x1b]")
_AS_BROWSERS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "tis-620": "cp874", "iso8859-11": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
"""Declared encoding → the superset that browsers use, since most texts that declare the former are in the latter."""
CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""CJK characters, as the inside of a character class."""
WORD = re.compile(rf"(?<!\s)\s*+(?:[{CJK}]{{1,2}}|[^\s{CJK}]{{1,100}})")
"""A word with the white space before it. Two CJK characters count as a word, as do 100 characters without a blank.
No match starts inside white space, so that trailing blanks are scanned once."""

_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]+|(?<=[。！？])|\n(?=[ \t]*[^a-z \t])")
"""End of a sentence. A line break before a lower-case letter does not end it."""


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence."""
    gaps = [match.span() for match in _SENTENCE_END.finditer(text)]
    return list(zip([0, *(end for _, end in gaps)], [*(start for start, _ in gaps), len(text)], strict=True))


@dataclass(frozen=True, slots=True)
class DecodedText:
    """A text and the encoding it was decoded with."""

    text: str
    encoding: str
    """Python's name of the encoding. Empty if no encoding fits; the text is then UTF-8 with U+FFFD."""
    is_guess: bool = False
    """Whether the encoding follows neither from a byte order mark, a declaration nor the bytes themselves."""
    lost: int = 0
    """Number of U+FFFD that replace undecodable bytes."""


def decode(body: bytes, content_type: str) -> str:
    """Decode a web page, as `decoded` does."""
    return decoded(body, content_type).text


def decoded(body: bytes, content_type: str = "", is_page: bool = True) -> DecodedText:
    """Decode by byte order mark, header, the charset in a page, UTF-8, or a guess, in this order.

    Undecodable bytes become U+FFFD. Text that is mostly valid UTF-8 is decoded as UTF-8.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return decoded_as(body, name)
    from email.message import Message  # slow to import and rarely needed

    header = Message()
    header["Content-Type"] = content_type
    meta = _META.search(body[:65_536]) if is_page else None
    for charset in (header.get_content_charset(), meta[1].decode("ascii") if meta else None):
        if charset is not None and _is_text_codec(charset) and not (_is_utf8(charset) and not _mostly_utf8(body)):
            return decoded_as(body, declared_encoding(body, charset))
    if _mostly_utf8(body) and b"\x1b$" not in body:  # ISO 2022 escapes, which are ASCII
        return decoded_as(body, "utf-8")
    name = _guess_encoding(body)
    return replace(decoded_as(body, name or "utf-8"), encoding=name, is_guess=True)


def declared_encoding(body: bytes, charset: str) -> str:
    """The encoding to use for a text that declares `charset`: the superset that browsers use, if it decodes the text.
    Valid UTF-8 that is declared as Western European is UTF-8: Western European text is hardly ever valid UTF-8."""
    name = codecs.lookup(charset).name
    wider = _AS_BROWSERS.get(name, charset)
    western = "cp1252" in (wider, name)
    for name in ("utf-8", wider) if western else (wider,):
        with suppress(UnicodeDecodeError):
            body.decode(name)
            return name
    return charset


def decoded_as(body: bytes, name: str) -> DecodedText:
    """Decode by the encoding `name`. Undecodable bytes become U+FFFD."""
    text = body.decode(name, errors="replace")
    original_count = body.decode(name, errors="ignore").count("\ufffd") if "\ufffd" in text else 0
    return DecodedText(text, name, lost=text.count("\ufffd") - original_count)


def _is_utf8(charset: str) -> bool:
    return codecs.lookup(charset).name in ("utf-8", "utf-8-sig")


def _mostly_utf8(body: bytes) -> bool:
    """Whether a text is UTF-8, perhaps with a few broken bytes: in other encodings valid byte pairs are rare."""
    utf8 = decoded_as(body, "utf-8")
    return not utf8.lost or sum(letter > "\x7f" and letter != "\ufffd" for letter in utf8.text) > 2 * utf8.lost


def _guess_encoding(body: bytes) -> str:
    """The encoding with the most likely letter sequences, among those without odd signs; empty for binary data."""
    from chardet import detect

    first = _BEYOND_ASCII.search(body)
    sample = body[max(0, first.start() - 1000 if first else 0) :][:_SAMPLE].replace(b"\0", b"")
    texts = {name: sample.decode(name, errors="replace") for name in _GUESSED}
    plausible = [
        name for name, text in texts.items()
        if len(_ODD_SIGN.findall(text)) <= _MAX_ODD * sum(letter > "\x7f" for letter in text)
        and not (name == "cp1252" and "\xa4" in text)
    ] or _GUESSED  # fmt: skip
    foreign_text = _OF_ENGLISH.sub("", texts["cp1252"])
    if "cp1252" in plausible and not sample.isascii() and len(foreign_text) <= _MAX_FOREIGN * len(sample):
        return "cp1252"
    name = detect(sample, include_encodings=plausible, compat_names=False, no_match_encoding=plausible[0])["encoding"]
    return next((common for common in plausible if name and texts[common] == texts[name]), "")


def _is_text_codec(charset: str) -> bool:
    """Whether Python has a text encoding of this name (`hex` and `zip` are not text encodings)."""
    try:
        return isinstance(b"a".decode(charset, errors="replace"), str)
    except (LookupError, ValueError, TypeError):
        return False


# Visible text: control and direction characters are written out, so that a terminal shows them instead of obeying them.
#
# A passage, an id, a server's message or a model's text may contain any character. Escape sequences move the cursor,
# set the clipboard and hide lines; direction marks make a text read as another one. The viewer uses the same notation.

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""Control characters except tabs and line feeds, direction marks, line separators, tags, and lone surrogates, which
cannot be encoded. Joiners and soft hyphens are not included, since they are parts of words."""

_ZERO_WIDTH = (
    "\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
SOFT_HYPHEN = "\u00ad"
ZERO_WIDTH = re.compile(f"[{_ZERO_WIDTH}]+")
"""Joiners, zero-width blanks, direction marks, variation selectors. Together with the soft hyphen, which is visible at
the end of a line, they are Unicode's Default_Ignorable_Code_Point."""


def visible(text: str) -> str:
    """Write hidden characters out: an escape character becomes `⟨U+001B⟩`."""
    if text.isascii() and text.isprintable():
        return text
    return HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def without_invisible(text: str) -> str:
    """Remove characters that have no glyph."""
    return text if text.isascii() else ZERO_WIDTH.sub("", text).replace(SOFT_HYPHEN, "")


def visible_json(document: str) -> str:
    """Escape hidden characters in a JSON document, such as `\\u001b`. Its value stays the same."""
    return HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], document)


# Spelling: laptop worlds write a blank around every punctuation mark; people do not.
#
# `separated` spells typed text as a laptop policy learnt it; `as_written` spells text of a laptop world for people.
# Both leave text unchanged that already has the wanted spelling.

_REQUESTS = frozenset(["name", "tell", "say", "give", "find", "list", "please", "i", "we"])
"""First words of requests, which end in a full stop."""
_LOWER_FIRST = frozenset(("the", "whoever"))
"""First words that laptop worlds do not capitalise."""
_FINAL = " \t\r\n.?!,;:…"
_APOSTROPHES = str.maketrans("‘’‛ʼ`´", "''''''")
_QUOTES = re.compile(r"[\"“”„‟«»‹›]|(?<!\w)'|'(?!\w)")
"""Quotation marks, which laptop worlds do not write. Excludes apostrophes inside words."""
_POSSESSIVE = re.compile(r"(?<=\w)'s\b")
_MARK = re.compile(r"(?<=\d)[.,:](?=\d)|(?<=\w)-(?=\w)|(?<=\w)'(?=\w)|([^\w\s])")
"""A punctuation mark. The group is empty if the mark is part of a number or word."""
_CLOSING = "[,.?!:;)]"
_ATTACHED = re.compile(rf"(?<=\w){_CLOSING}(?!\w)|\((?=\w)")
_SEPARATED = re.compile(r"\s[,.)](?=\s|<|$)")
_BEGINS_APART = re.compile(r"(?:<\w+>)? ")
_BLANK_BEFORE = re.compile(rf"(?<!\s)\s+(?={_CLOSING}(?![\w.])|'s\b)")
_BLANK_AFTER = re.compile(r"(?<=[(#])\s+")


def separated(text: str, is_token: Callable[[str], bool]) -> str:
    """Spell a typed question as laptop worlds do: a capital first, blanks around every mark, one mark at the end.

    `is_token` returns whether a word is one token of the policy. In a question without capitals, names that the policy
    knows are capitalised. A question that already has this spelling only loses its outer blanks.
    """
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES).replace("…", " … "))
    text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")  # soft hyphens, zero-width marks
    text = _QUOTES.sub(" ", text)
    body = text.rstrip(_FINAL)
    end = _final_mark(text[len(body) :], body)
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


def _final_mark(typed_end: str, body: str) -> str:
    """The final mark: the typed one, else the one that suits the first word."""
    if "?" in typed_end or "." in typed_end:
        return "?" if "?" in typed_end else "."
    return "." if next(iter(body.lower().split()), "") in _REQUESTS else "?"


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def as_written(text: str) -> str:
    """Spell text of a laptop world as people do: no blank before a mark or after an opening bracket.

    Returns other text unchanged, such as French with its blank before a question mark. A text is taken for a laptop
    world's if no mark is attached to a word, and if it or its first tag begins with a blank or has a comma between
    blanks.
    """
    if not (_BEGINS_APART.match(text) or _SEPARATED.search(text)) or _ATTACHED.search(text):
        return text
    return _BLANK_AFTER.sub("", _BLANK_BEFORE.sub("", text)).strip()


# Repetition: loops of words, which small models fall into when they do not know an answer, are shortened for display.
# What is stored, scored or trained on is never shortened.

_LOOP = re.compile(r"\b((?:\w++\W++){1,12}?)\1{3,}", re.IGNORECASE)
"""Up to 12 words, repeated at least four times."""
_FEWEST = 8
"""Minimum number of words of a loop: "no, no, no, no" has fewer."""


def _is_loop(match: re.Match[str]) -> bool:
    """Whether repeated words are a loop. Repeated numbers are a table."""
    return len(re.findall(r"\w+", match[0])) >= _FEWEST and any(map(str.isalpha, match[1]))


def without_repetition(text: str) -> str:
    """Replace each loop by its first round and an ellipsis."""
    return _LOOP.sub(lambda match: f"{match[1]}…" if _is_loop(match) else match[0], text)


def has_loop(text: str) -> bool:
    """Whether the text has a loop."""
    return any(map(_is_loop, _LOOP.finditer(text)))


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 passage`, `2,000 passages`. `plural` is for irregular plurals."""
    regular = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural or regular}"
