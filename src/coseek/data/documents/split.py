"""Split: cuts the blocks of a section into texts of at most so many words: by paragraph, row, sentence, then word."""

import re
from collections.abc import Iterator, Sequence

from coseek.core.plain_text import WORD

PARAGRAPH = "\n\n"
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])(?<![A-Z]\.)[ \t\n]+|(?<=[。！？])")
_CELL = " | "


def split(blocks: Sequence[str], size: int, overlap: int = 0) -> Iterator[str]:
    """Texts of at most `size` words (`WORD`), each beginning with the last `overlap` words of the one before it.

    Whole blocks are joined while they fit. A longer block is cut between its rows or sentences, and a longer sentence
    between words.
    """
    room = size - overlap
    found: list[str] = []
    words = 0
    last = ""
    for text, glue, count in _units(blocks, room):
        if found and words + count > room:
            last = _with_overlap(last, "".join(found), overlap)
            yield last
            found, words = [], 0
        found.append(glue + text if found else text)
        words += count
    if found:
        yield _with_overlap(last, "".join(found), overlap)


def count_words(text: str) -> int:
    """Words as `WORD` finds them."""
    return sum(1 for _ in WORD.finditer(text))


def _with_overlap(last: str, text: str, overlap: int) -> str:
    """The text behind the last words of the text before it."""
    tail = WORD.findall(last)[-overlap:] if overlap else []
    return f"{''.join(tail).strip()} {text}" if tail else text


def _units(blocks: Sequence[str], size: int) -> Iterator[tuple[str, str, int]]:
    """(text of at most `size` words, what joins it to the text before it, its words)."""
    for block in blocks:
        count = count_words(block)
        if count <= size:
            yield block, PARAGRAPH, count
            continue
        glue = PARAGRAPH
        for text, joint in _parts(block):
            count = count_words(text)
            if count <= size:
                yield text, glue, count
            else:
                found = WORD.findall(text)
                for start in range(0, len(found), size):
                    yield "".join(found[start : start + size]).strip(), glue, len(found[start : start + size])
                    glue = " "
            glue = joint


def _parts(block: str) -> Iterator[tuple[str, str]]:
    """The rows of a table, or the sentences of a text, with what joined them to the next one."""
    rows = block.split("\n")
    if sum(_CELL in row for row in rows) > len(rows) / 2 or not _SENTENCE_END.search(block):
        yield from ((row, "\n") for row in rows if row.strip())
        return
    start = 0
    for found in _SENTENCE_END.finditer(block):
        if found.start() > start:
            yield block[start : found.start()], "\n" if "\n" in found.group() else " " if found.group() else ""
        start = found.end()
    if block[start:].strip():
        yield block[start:], " "
