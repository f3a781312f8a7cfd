"""Document: what a reader made of one file, and the outline that readers fill."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from coseek.core.files import JsonObject
from coseek.core.text import DecodedText, decoded, decoded_as

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_BLANKS = re.compile(r"(?<![ \t])[ \t]{100,}+")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_MAX_CONTROLS = 0.01
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
    """A file's title, its sections and its fields."""

    title: str
    sections: list[Section]
    meta: JsonObject = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What of the file could not be read."""
    encoding: str = ""
    """The guessed encoding; empty where the file or its bytes say it."""


class Outline:
    """Collects headings and blocks into sections. A heading without text below it becomes text of its own."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._path: list[tuple[int, str]] = []
        self._blocks: list[str] = []
        self._is_bare, self._group = False, ""

    def heading(self, level: int, text: str) -> None:
        """Begin a section; `level` counts from 1, and an equal or higher one ends those that are open."""
        if text := " ".join(clean(text).split()):
            self._end(level)
            self._path = [*((depth, name) for depth, name in self._path if depth < level), (level, text)]
            self._is_bare = True

    def block(self, text: str, group: str = "") -> None:
        """Add a paragraph; one of the same `group` as the last continues its block, as a table's rows do."""
        text = clean(text).strip("\n")
        if text.strip():
            if group and group == self._group:
                self._blocks[-1] += "\n" + text
            else:
                self._blocks.append(text)
            self._group = group

    def finish(self) -> list[Section]:
        self._end(0)
        return self.sections

    @property
    def first_heading(self) -> str:
        """The heading that the document opens with, if there is one."""
        return next(iter(self.sections[0].headings), "") if self.sections else ""

    def _end(self, level: int) -> None:
        if self._is_bare and not self._blocks and self._path[-1][0] >= level:
            self._blocks = [self._path[-1][1]]
        if self._blocks:
            self.sections.append(Section(tuple(self._blocks), tuple(name for _, name in self._path)))
        self._blocks, self._group, self._is_bare = [], "", False


def clean(text: str) -> str:
    """The text without characters that files and terminals cannot hold, `\\n` as its only line end, and without long
    stretches of blanks."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\xa0", " ")
    return _BLANKS.sub(" ", _UNPRINTABLE.sub("", text))


def decoded_text(data: bytes, is_page: bool = False) -> DecodedText:
    """Decode a text, or a page that may declare its encoding. Raises `DocumentFault` for binary data, and for an
    unknown encoding."""
    head = data[:65_536]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return decoded(data)
    for start, name in ((1, "utf-16-le"), (0, "utf-16-be")):  # without a mark, every other byte of Latin text is 0
        if len(head) >= 8 and head[start::2].count(0) > 0.8 * len(head[start::2]):
            return decoded_as(data, name)
    if b"\x00" in head or len(head) - len(head.translate(None, _CONTROLS)) > _MAX_CONTROLS * len(head):
        raise DocumentFault("it is not text")
    text = decoded(data, is_page=is_page)
    if not text.encoding:
        raise DocumentFault("its encoding is not known; save it as UTF-8")
    return text


def paragraphs(text: str) -> Iterator[str]:
    """Stretches of lines between blank lines."""
    yield from (part.strip("\n") for part in _PARAGRAPH.split(clean(text)) if part.strip())
