"""Split: cuts the blocks of a section into texts of at most `size` words or tokens: by paragraph, row, sentence, word,
and at last character."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.core.text import WORD

Count: TypeAlias = Callable[[str], int]
"""How much of a passage's size a text takes."""

TOKENIZER = "tokenizer.json"
PARAGRAPH = "\n\n"
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])(?<![A-Z]\.)[ \t\n]+|(?<=[。！？])")
_CELL = " | "


def count_words(text: str) -> int:
    """Words as `WORD` finds them."""
    return sum(1 for _ in WORD.finditer(text))


def check_tokenizer(name: str) -> None:
    """Refuse a folder without a tokenizer that can be opened."""
    path = Path(name).expanduser() / TOKENIZER
    if not path.is_file():
        raise DataError(f"{path.parent} holds no {TOKENIZER}; name the folder of an encoder or of a language model")
    try:
        counter(name)
    except Exception as error:  # the library raises plain ones
        if isinstance(error, ModuleNotFoundError):
            raise
        raise DataError(f"{path} cannot be opened ({str(error)[:200]}); fetch it again") from None


@lru_cache(maxsize=1)
def counter(name: str | None) -> Count:
    """Counts words, or the tokens of the tokenizer in a folder, without special ones."""
    if name is None:
        return count_words
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(name).expanduser() / TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()  # some files pad every text to the encoder's length
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def split(blocks: Sequence[str], size: int, overlap: int = 0, count: Count = count_words) -> Iterator[str]:
    """Texts of at most `size` words (`WORD`), or of what else is counted, each beginning with the last `overlap` of the
    one before it, as far as they are whole words.

    Whole blocks are joined while they fit. A longer block is cut between its rows or sentences, a longer sentence
    between words, a longer word between characters.
    """
    room = size - overlap
    found: list[str] = []
    filled = 0
    last = ""
    for text, glue in _units(blocks, room, count):
        more = count(glue + text) if found else count(text)
        if found and filled + more > room:
            last = _with_overlap(last, "".join(found), overlap, count)
            yield last
            found, filled, more = [], 0, count(text)
        found.append(glue + text if found else text)
        filled += more
    if found:
        yield _with_overlap(last, "".join(found), overlap, count)


def _with_overlap(last: str, text: str, overlap: int, count: Count) -> str:
    """The text behind the last words of the text before it."""
    if not overlap:
        return text
    tail = ""
    for word in reversed(WORD.findall(last)):
        if count(word + tail) > overlap:
            break
        tail = word + tail
    return f"{tail.strip()} {text}" if tail else text


def _units(blocks: Sequence[str], size: int, count: Count) -> Iterator[tuple[str, str]]:
    """(text of at most `size`, what joins it to the text before it)."""
    for block in blocks:
        if count(block) <= size:
            yield block, PARAGRAPH
            continue
        glue = PARAGRAPH
        for text, joint in _parts(block):
            for piece in [text] if count(text) <= size else _words(text, size, count):
                yield piece, glue
                glue = " "
            glue = joint


def _words(text: str, size: int, count: Count) -> Iterator[str]:
    """Stretches of words, and of characters of a word that is too long."""
    found, filled = "", 0
    waiting = WORD.findall(text)[::-1]
    while waiting:
        word = waiting.pop()
        more = count(word)
        if more > size and len(word.strip()) > 1:
            middle = len(word) - len(word.strip()) // 2
            waiting += [word[middle:], word[:middle]]
        elif found and filled + more > size:
            yield found.strip()
            found, filled = word, more
        else:
            found, filled = found + word, filled + more
    if found:
        yield found.strip()


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
