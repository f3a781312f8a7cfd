"""Lexicon: the words of a laptop world, namely its names, kinds, relations and the templates of its sentences.

The laptop lexicon (`laptop.yaml`) is that of the worlds that agents are measured in. `drawn_lexicon` makes others, for
worlds to train on.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import TypeAdapter

from coseek.core.files import read_yaml
from coseek.lab.world.settings import KINDS

FORMLESS = 0.3
"""Share of names without a form word where the kind has some ("Port Ravmere", "Ravmere")."""
TITLED = ("film", "book", "band", "company")
"""Kinds whose names are two words, as titles are."""
LITERALS = ("year", "river", "currency", "language")
"""Targets whose values are not entities."""
YEARS = range(1880, 1980)
"""One hundred values: each is a token, and their order can be learnt."""

Constraint: TypeAlias = tuple[str, str, str, str]
"""Kind, two relations, and the question that both single out one entity; the first value is the anchor."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation and its wordings.

    Every relation is functional: an entity has at most one value of it that holds today. A clause is how a passage
    states the fact (`{o}` is the value), a phrase is how a question nests it (`{x}` is the subject, always last, so
    that chains of any depth read from right to left), and an ask is a whole question. The first phrase is `the NOUN of
    {x}`.
    """

    noun: str
    subjects: tuple[str, ...]
    """The kinds that have it."""
    target: str
    """The kind of its value, or a literal: year, river, currency, language."""
    clauses: tuple[str, ...]
    synonyms: tuple[str, ...]
    """Phrases other than `the NOUN of {x}`."""
    asks: tuple[str, ...]
    occupation: str = ""
    """If given, only people of this occupation are values."""
    changes: bool = False
    """Whether the value may change, so that passages may state a former one."""
    first: str = ""
    """For years: the question which of `{a}` and `{b}` is earlier."""

    @property
    def phrases(self) -> tuple[str, ...]:
        return (f"the {self.noun} of {{x}}", *self.synonyms)

    @property
    def is_literal(self) -> bool:
        return self.target in LITERALS


@dataclass(frozen=True)
class Lexicon:
    """The words of a world. Kinds and literals are keys (`film`, `year`); `words` and `pools` give their names."""

    words: Mapping[str, str]
    """Kind → the word for it in texts."""
    occupations: tuple[str, ...]
    """Words for a person instead of the word of the kind; some relations have values of one occupation only."""
    relations: tuple[Relation, ...]
    constraints: tuple[Constraint, ...]
    pools: Mapping[str, tuple[tuple[str, ...], ...]]
    """Kind or literal → the pools of the words of a name, in order."""
    forms: Mapping[str, tuple[str, ...]]
    """Kind → words that may precede the name."""
    opening: str
    """The text of a passage."""
    introductions: tuple[str, ...]
    """Introductions of an alias."""
    beside: str
    """An outdated value beside the present one."""
    apart: tuple[str, ...]
    """An outdated value in a separate passage, without the present one."""
    frames: tuple[str, ...]
    """Whole questions around a phrase."""
    same: tuple[str, ...]
    """Questions whether two entities have one value."""

    @cached_property
    def by_noun(self) -> dict[str, Relation]:
        return {relation.noun: relation for relation in self.relations}

    @cached_property
    def by_kind(self) -> dict[str, tuple[Relation, ...]]:
        return {kind: tuple(relation for relation in self.relations if kind in relation.subjects) for kind in KINDS}

    @cached_property
    def earlier_nouns(self) -> tuple[str, ...]:
        """The relations whose values are compared in time."""
        return tuple(relation.noun for relation in self.relations if relation.first)

    @cached_property
    def same_nouns(self) -> tuple[str, ...]:
        """The relations of which two entities may share a value."""
        by_name = (relation for relation in self.relations if not relation.is_literal)
        return tuple(relation.noun for relation in by_name if relation.target != "person")

    def draw_name(self, kind: str, rng: random.Random) -> str:
        """A name or literal value of this kind."""
        if kind in self.forms:
            stem = rng.choice(self.pools[kind][0])
            return stem if rng.random() < FORMLESS else f"{rng.choice(self.forms[kind])} {stem}"
        return " ".join(rng.choice(pool) for pool in self.pools[kind])


@cache
def laptop_lexicon() -> Lexicon:
    """The lexicon of the worlds that agents are measured in."""
    tree = read_yaml(Path(__file__).with_name("laptop.yaml"), "lexicon")
    pools = {kind: tuple(map(_pool, words)) for kind, words in cast(dict[str, list[str]], tree["pools"]).items()}
    pools |= {"year": (tuple(map(str, YEARS)),), **dict.fromkeys(TITLED, pools.pop("titled"))}
    return TypeAdapter(Lexicon).validate_python({**tree, "words": {kind: kind for kind in KINDS}, "pools": pools})


def _pool(words: str) -> tuple[str, ...]:
    """The words of a pool; of `STARTS × ENDS` every start with every end."""
    starts, _, ends = words.partition(" × ")
    return tuple(start + end for start in starts.split() for end in ends.split() or [""])
