"""Document: the result of reading a file, the outline that readers fill, and the splitting of sections into texts of
at most `size` words or tokens: by paragraph, row, sentence, word, and finally character."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.text import WORD, DecodedText, decoded, decoded_as

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_END = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
_BLANKS = re.compile(r"(?<![ \t])[ \t]{100,}+")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_MAX_CONTROLS = 0.01
"""Maximum share of control bytes in a text."""
_NO_TEXT = ("Cc", "Cn", "Co", "Cs")
_CONTROLS = bytes({*range(32)} - {9, 10, 11, 12, 13, 27})


class DocumentFault(Exception):
    """A file that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of a document below one heading, page or row."""

    blocks: tuple[str, ...]
    """Paragraphs, tables and lists, in order."""
    headings: tuple[str, ...] = ()
    """From the outermost to the innermost."""
    meta: JsonObject = field(default_factory=dict)


@dataclass
class Document:
    """A file's title, its sections and its fields."""

    title: str
    sections: list[Section]
    meta: JsonObject = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Parts of the file that could not be read."""
    encoding: str = ""
    """The guessed encoding; empty if the file or its bytes determine it."""


class Outline:
    """Collects headings and blocks into sections. A heading without text below it becomes a block itself."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._path: list[tuple[int, str]] = []
        self._blocks: list[str] = []
        self._is_bare, self._group = False, ""

    def heading(self, level: int, text: str) -> None:
        """Begin a section, and end open sections of the same or a lower level. `level` counts from 1, the highest."""
        if text := " ".join(clean(text).split()):
            self._end_section(level)
            self._path = [*((depth, name) for depth, name in self._path if depth < level), (level, text)]
            self._is_bare = True

    def block(self, text: str, group: str = "") -> None:
        """Add a paragraph. Paragraphs of the same `group` as the last one continue its block, as rows of a table."""
        text = clean(text).strip("\n")
        if text.strip():
            if group and group == self._group:
                self._blocks[-1] += "\n" + text
            else:
                self._blocks.append(text)
            self._group = group

    def finish(self) -> list[Section]:
        self._end_section(0)
        return self.sections

    def _end_section(self, level: int) -> None:
        if self._is_bare and not self._blocks and self._path[-1][0] >= level:
            self._blocks = [self._path[-1][1]]
        if self._blocks:
            self.sections.append(Section(tuple(self._blocks), tuple(name for _, name in self._path)))
        self._blocks, self._group, self._is_bare = [], "", False


def clean(text: str, is_name: bool = False) -> str:
    """The text in NFC, with `\\n` as its only line end, without characters that files and terminals cannot hold, and
    without long runs of blanks. File names are not normalised, since they open the file."""
    text = _LINE_END.sub("\n", text if is_name else unicodedata.normalize("NFC", text)).replace("\xa0", " ")
    return _BLANKS.sub(" ", _UNPRINTABLE.sub("", text))


def decoded_text(data: bytes, is_page: bool = False) -> DecodedText:
    """Decode a text, or a page that may declare its encoding. Keeps single NUL bytes. Raises `DocumentFault` for binary
    data and for an unknown encoding."""
    head = data[:65_536]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return decoded(data)
    without_nuls = head.replace(b"\0", b"")
    is_text = len(without_nuls) - len(without_nuls.translate(None, _CONTROLS)) <= _MAX_CONTROLS * len(without_nuls)
    # In UTF-16, most NUL bytes have the same parity.
    is_text &= 4 * abs(head[::2].count(0) - head[1::2].count(0)) <= len(head) <= 2 * len(without_nuls)
    # Mostly ASCII or UTF-8, hence not UTF-16.
    is_bytewise = is_text and 10 * decoded_as(without_nuls, "utf-8").lost <= len(without_nuls)
    if (not is_text or b"\0" in head) and not is_bytewise and (name := _utf_16(head)):
        return replace(decoded_as(data, name), is_guess=True)
    if not is_text:
        raise DocumentFault("it is not text")
    text = decoded(data, is_page=is_page)
    if not text.encoding:
        raise DocumentFault("its encoding is not known; save it as UTF-8")
    return text


def _utf_16(head: bytes) -> str:
    """The byte order of UTF-16 without a mark; empty for other data. A text has fewer distinct high bytes than low
    bytes, and no unassigned, private or control characters."""
    names = ("utf-16-le", "utf-16-be")
    name = min(names, key=lambda name: len({*head[name == "utf-16-le" :: 2]}))
    text = head.decode(name, errors="ignore")
    is_text = len(head) >= 8 and all(sign in "\t\n\r\f" or unicodedata.category(sign) not in _NO_TEXT for sign in text)
    return name if is_text else ""


def paragraphs(text: str) -> Iterator[str]:
    """Stretches of lines between blank lines."""
    yield from (part.strip("\n") for part in _PARAGRAPH.split(clean(text)) if part.strip())


Count: TypeAlias = Callable[[str], int]
"""Text → its size in words or tokens."""

TOKENIZER = "tokenizer.json"
PARAGRAPH = "\n\n"
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])(?<![A-Z]\.)[ \t\n]+|(?<=[。！？])")
CELL = " | "
"""Between the cells of a table's row."""


def count_words(text: str) -> int:
    """Words as `WORD` finds them."""
    return sum(1 for _ in WORD.finditer(text))


def check_tokenizer(name: str) -> None:
    """Raise `DataError` for a folder without a tokenizer that can be opened."""
    path = Path(name).expanduser() / TOKENIZER
    if not path.is_file():
        raise DataError(f"{path.parent} holds no {TOKENIZER}; name the folder of an encoder or of a language model")
    try:
        counter(name)
    except Exception as error:  # the library raises plain exceptions
        if isinstance(error, ModuleNotFoundError):
            raise
        raise DataError(f"{path} cannot be opened ({str(error)[:200]}); fetch it again") from None


@lru_cache(maxsize=1)
def counter(name: str | None) -> Count:
    """A counter of words, or of tokens with the tokenizer in a folder, without special tokens."""
    if name is None:
        return count_words
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(name).expanduser() / TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()  # some files pad every text to the encoder's length
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def split(blocks: Sequence[str], size: int, overlap: int = 0, count: Count = count_words) -> Iterator[str]:
    """Split blocks into texts of at most `size` units of `count`, words by default. Each begins with the last `overlap`
    units of the text before it, in whole words.

    Whole blocks are joined while they fit. A longer block is cut between its rows or sentences, a longer sentence
    between words, a longer word between characters. Each piece of a cut table begins with its first row of cells.
    """
    room = size - overlap
    piece, piece_size, previous = "", 0, ""
    for text, glue, header in _units(blocks, room, count):
        text_size = count(glue + text) if piece else count(text)
        if piece and piece_size + text_size > room:
            previous = _with_overlap(previous, piece, overlap, count)
            yield previous
            piece, piece_size, text = "", 0, header + text
            text_size = count(text)
        piece += glue + text if piece else text
        piece_size += text_size
    if piece:
        yield _with_overlap(previous, piece, overlap, count)


def _with_overlap(previous: str, text: str, overlap: int, count: Count) -> str:
    """The text, preceded by the last words of `previous`."""
    tail = ""
    for word in reversed(WORD.findall(previous) if overlap else []):
        if count(word + tail) > overlap:
            break
        tail = word + tail
    return f"{tail.strip()} {text}" if tail else text


def _units(blocks: Sequence[str], size: int, count: Count) -> Iterator[tuple[str, str, str]]:
    """Yield (text of at most `size`, the glue before it, the header line of its table)."""
    for block in blocks:
        if count(block) <= size:
            yield block, PARAGRAPH, ""
            continue
        glue, header, room = PARAGRAPH, None, size
        for text, joint, is_row in _parts(block):
            for piece in [text] if count(text) <= room else _split_words(text, room, count):
                yield piece, glue, header or ""
                glue = " "
            glue = joint
            if is_row and header is None:
                header = f"{text}\n" if 4 * count(text) <= size else ""
                room -= count(header)


def _split_words(text: str, size: int, count: Count) -> Iterator[str]:
    """Split a text between words, and words that are too long between characters."""
    piece, piece_size = "", 0
    words = WORD.findall(text)[::-1]
    while words:
        word = words.pop()
        word_size = count(word)
        if word_size > size and len(word.strip()) > 1:
            middle = len(word) - len(word.strip()) // 2
            words += [word[middle:], word[:middle]]
        elif piece and piece_size + word_size > size:
            yield piece.strip()
            piece, piece_size = word, word_size
        else:
            piece, piece_size = piece + word, piece_size + word_size
    if piece:
        yield piece.strip()


def _parts(block: str) -> Iterator[tuple[str, str, bool]]:
    """The rows of a table, or the sentences of a text, each with the glue after it and whether it has cells."""
    rows = block.split("\n")
    is_table = sum(CELL in row for row in rows) > len(rows) / 2
    if is_table or not _SENTENCE_END.search(block):
        yield from ((row, "\n", is_table and CELL in row) for row in rows if row.strip())
        return
    start = 0
    for end in _SENTENCE_END.finditer(block):
        if end.start() > start:
            yield block[start : end.start()], "\n" if "\n" in end[0] else " " if end[0] else "", False
        start = end.end()
    if block[start:].strip():
        yield block[start:], " ", False
