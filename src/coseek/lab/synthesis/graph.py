"""Hop graph: which passage leads from one name to the next, and to nothing else.

A hop goes *forward*, from the subject of a passage to a name that a phrase of it gives, or *back*, from a name to the
only subject of which a phrase gives it. Names are subjects of passages (their titles), other names of them, or rare
strings: names that several passages hold and none is about.

Every hop is exclusive: no passage but its own holds both of its names. Where that is so for every hop of a chain, and
no passage holds two names that are not neighbours in it, each of its passages is needed.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from coseek.agents.scripted.rules import with_subject
from coseek.data.documents.reading import TITLE_STEP
from coseek.data.passage import Corpus, Passage
from coseek.lab.synthesis.names import Kind, key_of
from coseek.lab.synthesis.statements import Facts, Phrase, Statement, state
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings, weigh

Rows = NDArray[np.int32]
_RARE = 5
"""Passages that may hold a name that none is about, where it joins two of them."""
_ODD, _FEW = 20, 0.05
"""Names of a phrase with a known type, from which a type of so small a share tells of a namesake."""
_PLACING = ("born in", "located in", "situated in", "based in", "headquartered in", "lives in", "died in", "city in")
"""Ends of phrases that give a place."""
_SOME, _MOSTLY = 5, 0.8
"""How many names of a phrase, and which share of those with a known type, tell the type of another one."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a chain: from a name to the next, by what one passage says."""

    statement: Statement
    back: bool
    """From the value to the subject."""

    @property
    def row(self) -> int:
        return self.statement.row

    @property
    def phrase(self) -> Phrase:
        return self.statement.phrase

    @property
    def source(self) -> str:
        """The key of the name that it starts from."""
        return self.statement.key if self.back else self.statement.subject

    @property
    def target(self) -> str:
        """The key of the name that it leads to."""
        return self.statement.subject if self.back else self.statement.key

    @property
    def kind(self) -> Kind:
        """Of the target."""
        return "name" if self.back else self.statement.kind


Chain = tuple[Hop, ...]


def _under_its_heading(passage: Passage) -> Passage:
    """The passage with its own heading for a title, without those of its document above it."""
    above, _, heading = passage.title.rpartition(TITLE_STEP)
    return replace(passage, title=heading) if above else passage


class HopGraph:
    """The hops of a corpus."""

    def __init__(self, corpus: Corpus, support: int) -> None:
        self.corpus = corpus
        self.passages: list[Passage] = [_under_its_heading(with_subject(passage)) for passage in corpus]
        keys = [key_of(passage.title) for passage in self.passages]
        self.facts: Facts = state(enumerate(self.passages), keys, support)
        self._rows_of: defaultdict[str, list[int]] = defaultdict(list)
        for row, key in enumerate(keys):
            self._rows_of[key].append(row)
        self._other_names: defaultdict[str, set[str]] = defaultdict(set)
        for alias, subject in self.facts.aliases.items():
            self._other_names[subject].add(self.facts.written[alias])
        postings, self._vocabulary = weigh(corpus, Bm25Settings())
        self._postings = postings
        self.bm25 = Bm25(corpus, Bm25Settings(), postings, self._vocabulary)
        self._written: dict[str, str] = {}
        self._held: dict[str, set[int]] = {}
        self._places: set[str] = set()
        self._index()

    def _index(self) -> None:
        self._forward: defaultdict[str, list[Hop]] = defaultdict(list)
        self._stated: defaultdict[int, list[Statement]] = defaultdict(list)
        self.counts: defaultdict[Phrase, Counter[str]] = defaultdict(Counter)
        """Phrase → how often it gives each name."""
        back: defaultdict[tuple[str, Phrase], list[Statement]] = defaultdict(list)
        for statement in self.facts.statements:
            if self._is_odd(statement):
                continue
            self._forward[statement.subject].append(Hop(statement, back=False))
            self._stated[statement.row].append(statement)
            self.counts[statement.phrase][statement.key] += 1
            self._written.setdefault(statement.key, statement.name)
            if statement.kind == "name" and statement.phrase.before.endswith(_PLACING):
                self._places.add(statement.key)
            if statement.kind == "name":
                back[statement.key, statement.phrase].append(statement)
        self._back: defaultdict[str, list[Hop]] = defaultdict(list)
        for (key, _), group in back.items():
            if len(group) == 1 and self.facts.types.get(group[0].subject):
                self._back[key].append(Hop(group[0], back=True))

    def _is_odd(self, statement: Statement) -> bool:
        """Whether the name is of a type that few names of the phrase have: a film directed by a footballer."""
        counts = self.facts.styles[statement.phrase].value_types
        same = counts[self.facts.types.get(statement.key, "")]
        return counts.total() >= _ODD and 0 < same <= _FEW * counts.total()

    def _is_near(self, name: str) -> bool:
        """Whether passages that hold a name are about the same: it is a title, or rare."""
        return name in self._rows_of or len(self._cached_holding(name)) <= _RARE

    @cached_property
    def starts(self) -> list[str]:
        """Every name that a chain can start from, in a fixed order."""
        return sorted(key for key in {*self._forward, *self._back} if key)

    def stated(self, row: int) -> Sequence[Statement]:
        """The statements of one passage."""
        return self._stated.get(row, ())

    def hops(self, name: str) -> list[Hop]:
        """The hops that start from a name."""
        back = self._back.get(name)
        return [*self._forward.get(name, ()), *(back if back and self._is_near(name) else ())]

    def names_of(self, key: str) -> list[str]:
        """The name as passages write it, its title first; the answers that are right."""
        titles = [self.passages[row].title.strip() for row in self._rows_of.get(key, ())[:1]]
        plain = [title.partition(" (")[0] for title in titles]
        written = [self._written[key]] if key in self._written else []
        return list(dict.fromkeys([*titles, *plain, *written, *sorted(self._other_names.get(key, ()))]))

    def type_of(self, hop: Hop) -> str:
        """What the target of a hop is: as its passage says; what most names of the phrase are; a place, if something is
        located there; a person or body that something is made by; else empty."""
        known = self.facts.types.get(hop.target)
        if known is not None or hop.back or hop.kind != "name":
            return known or ""
        counts = self.facts.styles[hop.phrase].value_types
        usual, times = counts.most_common(1)[0] if counts else ("", 0)
        if times >= max(_SOME, _MOSTLY * counts.total()):
            return usual
        if hop.target in self._places:
            return "place"
        return "person or body" if hop.phrase.before.endswith(" by") and not hop.phrase.behind else ""

    def holding(self, key: str) -> set[int]:
        """The rows of all passages that hold a name or another name of the same."""
        found: set[int] = set(self._rows_of.get(key, ()))
        for name in {key, *map(key_of, self.names_of(key))}:
            found.update(self._holding(name))
        return found

    def _holding(self, name: str) -> Iterator[int]:
        cut = name.split()
        numbers = [self._vocabulary.get(word) for word in cut]
        known = [number for number in numbers if number is not None]
        if not cut or len(known) < len(cut):
            return
        lists: list[Rows] = sorted((self._postings.of(number)[0] for number in known), key=len)
        rows: Rows = reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), lists)
        for row in rows.tolist():
            if len(cut) == 1 or f" {name} " in self._padded(row):
                yield row

    def _padded(self, row: int) -> str:
        passage = self.corpus[row]
        return f" {' '.join(words(f'{passage.title} {passage.text}'))} "

    def is_exclusive(self, chain: Sequence[Hop]) -> bool:
        """Whether no other passage holds two names of the chain, and each of its own only those of its hop."""
        names = [chain[0].source, *(hop.target for hop in chain)]
        places: defaultdict[int, set[int]] = defaultdict(set)
        for place, name in enumerate(names):
            for row in self._cached_holding(name):
                places[row].add(place)
        own = {hop.row: {place, place + 1} for place, hop in enumerate(chain)}
        return all(len(held) < 2 or held == own.get(row) for row, held in places.items())

    def _cached_holding(self, key: str) -> set[int]:
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = self.holding(key)
        return found

    def is_only_one(self, hop: Hop) -> bool:
        """Whether a hop back leads to the only subject of its type in a passage that holds its source; a subject of
        unknown type may be of that type."""
        if not hop.back:
            return True
        kind = self.facts.types.get(hop.target)
        others = self._cached_holding(hop.source) - {hop.row}
        return not any(self.facts.types.get(key_of(self.passages[row].title), kind) == kind for row in others)

    def draw(self, start: str, hops: int, rng: random.Random, allowed: Callable[[int], bool]) -> Chain | None:
        """A chain of `hops` hops from a name over `allowed` rows, without a passage or a name twice; `None` where the
        draw ends early."""
        chain: list[Hop] = []
        name, seen = start, {start}
        while len(chain) < hops:
            rows = {hop.row for hop in chain}
            last = len(chain) + 1 == hops
            ways = [
                hop for hop in self.hops(name)
                if hop.row not in rows and hop.target not in seen and allowed(hop.row)
                and (last or (hop.kind == "name" and self.hops(hop.target) and self.type_of(hop)))
            ]  # fmt: skip
            if not ways:
                return None
            hop = rng.choice(ways)
            chain.append(hop)
            name = hop.target
            seen.add(name)
        return tuple(chain)
