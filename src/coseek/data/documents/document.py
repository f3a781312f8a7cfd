"""Document: what a reader made of one file, and the outline that readers fill."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from coseek.core.files import JsonObject
from coseek.core.plain_text import DecodedText, decoded, decoded_as

TIGHT = "\n"
"""Joins the rows of a table and the items of a list, which are one block."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_BLANKS = re.compile(r"(?<![ \t])[ \t]{100,}+")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_HEAD_BYTES = 65_536
_MOST_CONTROLS = 0.01
"""Share of control bytes from which a file is no text."""
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
    """A file's title, its fields, and its sections, which may be read one by one."""

    title: str
    sections: Iterable[Section]
    meta: JsonObject = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What of the file could not be read; complete when the sections are."""
    guessed: str = ""
    """The encoding, where nothing in the file says it."""


@dataclass
class Outline:
    """Collects headings and blocks into sections. A heading without text below it becomes text of its own."""

    sections: list[Section] = field(default_factory=list)
    _path: list[tuple[int, str]] = field(default_factory=list)
    _blocks: list[str] = field(default_factory=list)
    _bare: bool = False
    _list: object = None

    def heading(self, level: int, text: str) -> None:
        """Begin a section; `level` counts from 1, and an equal or higher one ends those that are open."""
        text = " ".join(clean(text).split())
        if not text:
            return
        self._end(level)
        self._path = [*((depth, name) for depth, name in self._path if depth < level), (level, text)]
        self._bare = True

    def block(self, text: str, joined: object = None) -> None:
        """Add a paragraph; one with the same `joined` as the last continues its block, as a table's rows do."""
        text = clean(text).strip("\n")
        if not text.strip():
            return
        if joined is not None and joined == self._list:
            self._blocks[-1] += TIGHT + text
        else:
            self._blocks.append(text)
        self._list = joined

    def finish(self) -> list[Section]:
        self._end(0)
        return self.sections

    @property
    def first_heading(self) -> str:
        """The heading that the document opens with, if there is one."""
        opening = self.sections[0].headings if self.sections else tuple(name for _, name in self._path)
        return opening[0] if opening else ""

    def _end(self, level: int) -> None:
        if self._bare and not self._blocks and self._path and self._path[-1][0] >= level:
            self._blocks = [self._path[-1][1]]
        if self._blocks:
            self.sections.append(Section(tuple(self._blocks), tuple(name for _, name in self._path)))
        self._blocks, self._list, self._bare = [], None, False


def clean(text: str) -> str:
    """The text without characters that files and terminals cannot hold, `\\n` as its only line end, and without long
    stretches of blanks."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\xa0", " ")
    return _BLANKS.sub(" ", _UNPRINTABLE.sub("", text))


def text_of(data: bytes, is_page: bool = False) -> str:
    """Decode as `decoded_text` does, and remove what files and terminals cannot hold (`clean`)."""
    return clean(decoded_text(data, is_page).text)


def decoded_text(data: bytes, is_page: bool = False) -> DecodedText:
    """Decode a text, or a page that may declare its encoding. Raises `DocumentFault` for binary data, and for an
    unknown encoding."""
    head = data[:_HEAD_BYTES]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return decoded(data)
    for start, name in ((1, "utf-16-le"), (0, "utf-16-be")):  # without a mark, every other byte of Latin text is 0
        if len(head) >= 8 and head[start::2].count(0) > 0.8 * len(head[start::2]):
            return decoded_as(data, name)
    if b"\x00" in head or len(head) - len(head.translate(None, _CONTROLS)) > _MOST_CONTROLS * len(head):
        raise DocumentFault("it is not text")
    found = decoded(data, is_page=is_page)
    if not found.encoding:
        raise DocumentFault("its encoding is not known; save it as UTF-8")
    return found


def undecoded(text: DecodedText) -> list[str]:
    """The fault of a text that lost bytes; empty for any other."""
    return [f"{text.lost:,} bytes are no {text.encoding or 'UTF-8'} text"] if text.lost else []


def paragraphs(text: str) -> Iterator[str]:
    """Stretches of lines between blank lines."""
    yield from (part.strip("\n") for part in _PARAGRAPH.split(text) if part.strip())
