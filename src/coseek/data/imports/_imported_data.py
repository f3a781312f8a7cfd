"""Imported data: what an import found, before it is written. Passages are told apart by title and text."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coseek.core.errors import DataError
from coseek.data.passage import Passage
from coseek.data.question import Question


@dataclass(frozen=True, slots=True)
class ImportedData:
    """The passages and questions of the sources, in their order."""

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    """All of them, where the sources know no splits."""
    notes: Mapping[str, int] = field(default_factory=dict)
    splits: Mapping[str, tuple[Question, ...]] = field(default_factory=dict)
    """The questions by split, where the sources have splits of their own; then `questions` is empty."""


class PassageCollector:
    """Collects passages whose sources give them no id: the title names them, `#2`, `#3` … tell namesakes apart."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], str] = {}
        self._passages: dict[str, Passage] = {}
        self._by_title: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def passages(self) -> tuple[Passage, ...]:
        return tuple(self._passages.values())

    def add(self, title: str, text: str) -> str:
        """The passage's id; the same title and text give the same passage."""
        known = self._ids.get((title, text))
        if known is not None:
            return known
        namesakes = self._by_title.setdefault(title, [])
        number = len(namesakes) + 1
        ident = self._name(title, number)
        while ident in self._passages:  # somebody's title is "X #2"
            number += 1
            ident = self._name(title, number)
        self._ids[title, text] = ident
        self._passages[ident] = Passage(ident, title, text)
        namesakes.append(ident)
        return ident

    def find(self, title: str, text: str, where: str) -> str:
        """The id of exactly this passage, for a source that says which passages are gold."""
        ident = self._ids.get((title, text))
        if ident is None:
            raise DataError(
                f"{where}: the gold passage {title!r} is not in the corpus; give the corpus of these questions"
            )
        return ident

    def titled(self, title: str, where: str) -> str:
        """The id of the one passage with this title, for a source that names gold passages by title."""
        idents = self._by_title.get(title, [])
        if len(idents) != 1:
            count = f"{len(idents)} passages" if idents else "no passage"
            raise DataError(f"{where}: the gold title {title!r} names {count} of the corpus; one is needed")
        return idents[0]

    @staticmethod
    def _name(title: str, number: int) -> str:
        return title if title and number == 1 else f"{title} #{number}".strip()
