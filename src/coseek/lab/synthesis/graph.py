"""Hop graph: which passage leads from one name to the next, and how this is asked.

A hop goes from the subject of a passage to a name that the passage states of it. It is exclusive where no passage but
its own holds both names. If every hop of a chain is, and no passage holds two names that are not neighbours in it, each
of its passages is needed.

    Souls at Sea was directed by a director. Where was this director born?
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from coseek.agents.scripted.rules import with_subject
from coseek.data.documents.reading import TITLE_STEP
from coseek.data.passage import Corpus
from coseek.data.question import plain_name
from coseek.lab.synthesis.statements import PREPOSITIONS, Statement, key_of, read_facts
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings, build_postings

Rows = NDArray[np.int32]
Chain = tuple[Statement, ...]
_MANY, _FEW = 20, 0.05
"""Typed names of a phrase from which a type of so small a share tells of a namesake: a film made by a footballer."""
_PLACING = ("born in", "located in", "situated in", "based in", "headquartered in", "lives in", "died in")
_ORDER = ("", "other ", "third ", "fourth ")
"""What tells apart names of one type."""


class HopGraph:
    """The hops of a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        named = map(with_subject, corpus)
        self.passages = [replace(passage, title=passage.title.rpartition(TITLE_STEP)[2]) for passage in named]
        """The passages with their own heading for a title, without those of their document above it."""
        keys = [key_of(passage.title) for passage in self.passages]
        facts = read_facts(self.passages, keys)
        self.types = facts.types
        """Key of a subject → what it is (`film`), where its passage says so."""
        self._row_of = {key: row for row, key in reversed([*enumerate(keys)])}
        self._postings, self._vocabulary = build_postings(corpus, Bm25Settings())
        self.bm25 = Bm25(corpus, Bm25Settings(), self._postings, self._vocabulary)
        self._held: dict[str, set[int]] = {}
        typed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for statement in facts.statements:
            if statement.key in self.types:
                typed[statement.phrase][self.types[statement.key]] += 1
        self.hops: defaultdict[str, list[Statement]] = defaultdict(list)
        """Key of a subject → its statements."""
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Phrase → how often it gives each name."""
        self._written: defaultdict[str, list[str]] = defaultdict(list)
        self._places: set[str] = set()
        for statement in facts.statements:
            same = typed[statement.phrase][self.types.get(statement.key, "")]
            if typed[statement.phrase].total() < _MANY or not 0 < same <= _FEW * typed[statement.phrase].total():
                self.hops[statement.subject].append(statement)
                self.counts[statement.phrase][statement.key] += 1
                self._written[statement.key].append(statement.name)
                if statement.kind == "name" and statement.phrase.endswith(_PLACING):
                    self._places.add(statement.key)
        for subject, name in facts.aliases.values():
            self._written[subject].append(name)

    def names_of(self, key: str) -> list[str]:
        """The name as passages write it, its title first; the answers that are right."""
        titles = [self.passages[self._row_of[key]].title.strip()] if key in self._row_of else []
        return list(dict.fromkeys([*titles, *map(plain_name, titles), *self._written.get(key, ())]))

    def type_of(self, hop: Statement) -> str:
        """What a hop leads to: as its passage says; a place, where something is located; who or what makes something;
        else empty."""
        if hop.kind != "name" or hop.key in self.types:
            return self.types.get(hop.key, "")
        return "place" if hop.key in self._places else "person or body" if hop.phrase.endswith(" by") else ""

    def holding(self, key: str) -> set[int]:
        """The rows of all passages that hold a name."""
        if key not in self._held:
            names = {key, *map(key_of, self.names_of(key))}
            self._held[key] = {row for name in names for row in self._holding(name)}
        return self._held[key]

    def _holding(self, name: str) -> Iterator[int]:
        numbers = [self._vocabulary.get(word) for word in name.split()]
        if not numbers or None in numbers:
            return
        rows: Rows = reduce(np.intersect1d, [self._postings.of(number)[0] for number in numbers if number is not None])
        for row in rows.tolist():
            passage = self.corpus[row]
            if len(numbers) == 1 or f" {name} " in f" {' '.join(words(f'{passage.title} {passage.text}'))} ":
                yield row

    def is_exclusive(self, chain: Chain) -> bool:
        """Whether no other passage holds two names of the chain, and each of its own only those of its hop."""
        positions_by_row: defaultdict[int, set[int]] = defaultdict(set)
        for position, name in enumerate([chain[0].subject, *(hop.key for hop in chain)]):
            for row in self.holding(name):
                positions_by_row[row].add(position)
        expected = {hop.row: {position, position + 1} for position, hop in enumerate(chain)}
        return all(len(positions) < 2 or positions == expected.get(row) for row, positions in positions_by_row.items())

    def draw(self, start: str, hops: int, rng: random.Random, allowed: Callable[[int], bool]) -> Chain | None:
        """A chain of `hops` hops from a name over `allowed` rows, without a passage or a name twice; `None` where the
        draw ends early."""
        chain: Chain = ()
        name, seen = start, {start}
        while len(chain) < hops:
            ways = [
                hop for hop in self.hops.get(name, ())
                if hop.row not in {earlier.row for earlier in chain} and hop.key not in seen and allowed(hop.row)
                and (len(chain) + 1 == hops or (hop.kind == "name" and hop.key in self.hops and self.type_of(hop)))
            ]  # fmt: skip
            if not ways:
                return None
            chain = (*chain, rng.choice(ways))
            name = chain[-1].key
            seen.add(name)
        return chain


def question_of(graph: HopGraph, chain: Chain) -> str:
    """One sentence a hop, in the words of the passages and without the names between; the last one asks."""
    subject = graph.names_of(chain[0].subject)[0]
    kinds_met: Counter[str] = Counter()
    sentences: list[str] = []
    for hop in chain[:-1]:
        kind = graph.type_of(hop)
        described = f"{_ORDER[kinds_met[kind]]}{kind}"
        vowel = described[0] in "aeiou" and not described.startswith(("uni", "use", "eu", "one"))
        article = "an" if kinds_met[kind] == 1 else "an " if vowel else "a "
        sentences.append(f"{subject} {hop.copula} {hop.phrase} {article}{described}.")
        subject = f"this {described}"
        kinds_met[kind] += 1
    sentences.append(_asked(chain[-1], graph.type_of(chain[-1]), subject))
    spaced = (" ".join(sentence.split()) for sentence in sentences)
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}" for sentence in spaced)


def _asked(hop: Statement, kind: str, subject: str) -> str:
    """The question of one hop: `By whom was Ferry made?`, `What is Ada the daughter of?`, `What does Bea work for?`."""
    rest, _, last = hop.phrase.rpartition(" ")
    copula = {"is": "was", "are": "were"}.get(hop.copula, hop.copula) if hop.kind != "name" else hop.copula
    joins = last in PREPOSITIONS.split("|")
    question_word = (
        f"which {kind or hop.kind}" if kind not in ("", "place", "person or body") or hop.kind != "name" else "what"
    )
    if hop.kind != "name" and not joins and copula:
        return f"when {copula} {subject} {hop.phrase}?"
    auxiliary, rest = (copula, rest) if copula else ("does", _infinitive(rest if joins else hop.phrase))
    if kind == "place" and last == "in":
        return f"where {auxiliary} {subject} {rest}?"
    if not joins:
        return f"{question_word} {auxiliary} {subject} {rest}?"
    if kind == "person or body":
        return f"{last} whom {auxiliary} {subject} {rest}?"
    front, end = ("", f" {last}") if question_word == "what" else (f"{last} ", "")
    return f"{front}{question_word} {auxiliary} {subject} {rest}{end}?"


def _infinitive(verb: str) -> str:
    """The infinitive of a verb in the third person: `works for`, `teaches`, `goes`, `studies`, `lies`."""
    first, _, rest = verb.partition(" ")
    if first.endswith("ies") and len(first) > len("lies"):
        first = f"{first[:-3]}y"
    else:
        first = first[:-2] if first.endswith(("ches", "shes", "sses", "xes", "zzes", "oes")) else first[:-1]
    return f"{first} {rest}".strip()
