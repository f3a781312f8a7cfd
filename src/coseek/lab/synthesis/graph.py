"""Hop graph: the passages of a corpus, the names that lead from one passage to another, and the passages with a name.

A link states no fact: the writer of a question reads what both passages say of the name.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce

import numpy as np
from numpy.typing import NDArray

from coseek.agents.scripted.rules import STOP_WORDS, with_subject
from coseek.data.documents.reading import TITLE_STEP
from coseek.data.passage import Corpus
from coseek.data.question import plain_name
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings, build_postings

Rows = NDArray[np.int32]
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_UPPER = "".join(filter(str.isupper, map(chr, range(0x530))))
CAPITAL = (
    rf"(?!(?:{MONTHS}|{_DAYS})\b)(?:[{_UPPER}][a-z]{{0,2}}\.(?=\s?[{_UPPER}])|[{_UPPER}]\w*(?:['’.&-](?!s\b)\w+)*)"
)
_INSIDE = r"(?:\s(?:of|the|de|la|le|du|von|van|der|den|del|da|di|al|el|y|et|&)\b)*"
NAME = rf"{CAPITAL}(?:(?:{_INSIDE}\s|(?<=\.)){CAPITAL}|\s\d{{1,3}}\b)*(?:\s\(\s?[a-z ]+\))?"
"""A run of capitalised words."""
_NAME = re.compile(rf"\b{NAME}")
_WORD = re.compile(r"[^\W_]+(?:\s?\))?")
_LONGEST = 80
"""Maximum characters of a title that is searched for in a text."""
_LEAST_WORDS = 5
"""Minimum words of a passage to write a question about."""
_RARE = 5
"""Maximum number of passages that contain a linking name, or have it as their title."""


def key_of(name: str) -> str:
    """The words of a name, in lower case, joined by blanks: names are equal when their keys are."""
    return " ".join(words(name))


@dataclass(frozen=True, slots=True)
class PassageGroup:
    """The passages for one question: one, or two linked by a name: the title of the second, or a rare name in both."""

    rows: tuple[int, ...]
    link: str = ""
    """The name that leads from the first passage to the second, as the first one writes it."""
    rank: int = 0
    """Pairs whose second passage is titled by the link come before the others."""


class HopGraph:
    """The passages of a corpus and their links."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        named = map(with_subject, corpus)
        self.passages = [replace(passage, title=passage.title.rpartition(TITLE_STEP)[2]) for passage in named]
        """The passages with their own heading for a title, without those of their document above it."""
        self._postings, self._vocabulary = build_postings(corpus, Bm25Settings())
        self.bm25 = Bm25(corpus, Bm25Settings(), self._postings, self._vocabulary)
        self._rows_with_key = cache(self._rows_with)

    def groups(self, hops: int) -> list[PassageGroup]:
        """Every passage that is long enough for a question, or every linked pair."""
        if hops == 2:
            return [*self._pairs()]
        long_enough = (row for row, passage in enumerate(self.corpus) if len(words(passage.text)) >= _LEAST_WORDS)
        return [PassageGroup((row,)) for row in long_enough]

    def _pairs(self) -> Iterator[PassageGroup]:
        """Every linked pair of titled passages, once in each direction at most."""
        titles = [key_of(plain_name(passage.title)) for passage in self.passages]
        rows_by_title, holders = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        for row, title in enumerate(titles):
            rows_by_title[title].append(row)
        names: list[dict[str, str]] = []
        for row, passage in enumerate(self.passages):
            mentions = {key_of(name): name for name in reversed([*names_in(passage.text, rows_by_title)])}
            names.append({key: name for key, name in mentions.items() if key})
            for key in names[row]:
                holders[key].append(row)
        for row, row_names in enumerate(names):
            joined_rows = {row}
            for key, name in row_names.items():
                other_rows = rows_by_title.get(key) or holders[key]
                if key != titles[row] and len(other_rows) <= _RARE:
                    for other_row in other_rows:
                        if other_row not in joined_rows:
                            yield PassageGroup((row, other_row), name, int(key not in rows_by_title))
                    joined_rows.update(other_rows)

    def holding(self, name: str) -> frozenset[int]:
        """The rows of all passages that contain a name."""
        return self._rows_with_key(key_of(name))

    def _rows_with(self, key: str) -> frozenset[int]:
        numbers = [self._vocabulary.get(word) for word in key.split()]
        known_numbers = [number for number in numbers if number is not None]
        if not known_numbers or len(known_numbers) < len(numbers):
            return frozenset()
        rows: list[int] = reduce(np.intersect1d, [self._postings.of(number)[0] for number in known_numbers]).tolist()
        texts = ((row, f"{self.corpus[row].title} {self.corpus[row].text}") for row in rows)
        return frozenset(row for row, text in texts if len(known_numbers) == 1 or f" {key} " in f" {key_of(text)} ")

    def is_exclusive(self, rows: Sequence[int], names: Sequence[str]) -> bool:
        """Whether each passage of a path contains only the two names of its hop, and no other passage contains two of
        the path's names."""
        positions: defaultdict[int, set[int]] = defaultdict(set)
        for position, name in enumerate(names):
            for row in self.holding(name):
                positions[row].add(position)
        expected = {row: {hop, hop + 1} for hop, row in enumerate(rows)}
        return all(len(held) < 2 or held == expected.get(row) for row, held in positions.items())

    def found_by(self, question: str, depth: int) -> list[str]:
        """The ids of the passages that one BM25 search finds, best first."""
        return [hit.passage.id for hit in self.bm25.search([question], depth)[0]]


def names_in(text: str, titles: Collection[str]) -> Iterator[str]:
    """The names in a text, in order: `titles` (keys), and runs of capitalised words. A first word that begins a
    sentence or is a stop word is not part of a run."""
    end = 0
    for match in _NAME.finditer(text):
        name, start = match[0], match.start()
        if start < end:
            continue
        title = _title_at(text, start, titles)
        if len(title) >= len(name) or (title and name.startswith(f"{title} of ")):  # `Jack Endino of Skin Yard`
            name = title
        first, _, rest = name.partition(" ")
        if key_of(name) not in titles:
            name = name.rpartition("(")[0].rstrip() if name.endswith(")") else name
            opens_sentence = text[max(0, start - 3) : start].rstrip()[-1:] in ("", ".", "!", "?")
            if first.lower() in STOP_WORDS or (opens_sentence and not rest):
                name, start = "" if rest.isdigit() else rest, start + len(first) + 1
        end = start + len(name)
        if name:
            yield name


def _title_at(text: str, start: int, titles: Collection[str]) -> str:
    """The longest title that begins there; empty without one."""
    following = words(text[start : start + _LONGEST])
    title = next((key for size in range(len(following), 0, -1) if (key := " ".join(following[:size])) in titles), None)
    ends = (match.end() for match in _WORD.finditer(text, start))
    return next((text[start:end] for end in ends if key_of(text[start:end]) == title), "") if title else ""
