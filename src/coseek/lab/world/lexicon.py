"""Lexicon: the words of a laptop world, namely its names, kinds, relations and the templates of its sentences.

`LAPTOP` is the lexicon of the worlds that agents are measured in. `drawn_lexicon` makes others, for worlds to train on.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from coseek.lab.world import names
from coseek.lab.world.relations import CONSTRAINTS, FRAMES, OCCUPATIONS, RELATIONS, Constraint, Relation
from coseek.lab.world.settings import KINDS

FORMLESS = 0.3
"""Share of names without a form word where the kind has some ("Port Ravmere", "Ravmere")."""


@dataclass(frozen=True)
class Lexicon:
    """The words of a world. Kinds and literals are keys (`film`, `year`); `words` and `pools` give their names."""

    words: Mapping[str, str]
    """Kind → the word for it in texts."""
    occupations: tuple[str, ...]
    """What a person is called instead of the word of the kind; some relations choose among one occupation alone."""
    relations: tuple[Relation, ...]
    constraints: tuple[Constraint, ...]
    pools: Mapping[str, tuple[tuple[str, ...], ...]]
    """Kind or literal → the pools that the words of a name are drawn from, in order."""
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind → words that may precede the name."""
    opening: str = "{title}{alias} is {article} {word} {clauses} ."
    """The text of a passage."""
    introductions: tuple[str, ...] = ("also called {alias}", "also known as {alias}", "known as {alias}")
    """Introductions of an alias."""
    beside: str = "with {before} as {noun} until {until} and {value} since then"
    """An outdated value beside the present one."""
    apart: tuple[str, ...] = (
        "An old guide of {until} tells that the {noun} of {name} was {before} . All this has changed since .",
        "In {until} the {noun} of {name} was still {before} . Soon after that it was another .",
    )
    """An outdated value in a passage of its own, without the present one."""
    frames: tuple[str, ...] = FRAMES
    """Whole questions around a phrase."""
    same: tuple[str, ...] = (
        "Do {a} and {b} have the same {noun} ?",
        "Is the {noun} of {a} the same as the {noun} of {b} ?",
        "Do {a} and {b} share one {noun} ?",
    )
    """Questions whether two entities have one value."""

    @cached_property
    def by_noun(self) -> dict[str, Relation]:
        return {relation.noun: relation for relation in self.relations}

    @cached_property
    def by_kind(self) -> dict[str, tuple[Relation, ...]]:
        return {kind: tuple(one for one in self.relations if kind in one.subjects) for kind in KINDS}

    @cached_property
    def earlier_nouns(self) -> tuple[str, ...]:
        """The relations whose values are compared in time."""
        return tuple(relation.noun for relation in self.relations if relation.first)

    @cached_property
    def same_nouns(self) -> tuple[str, ...]:
        """The relations of which two entities may share a value."""
        return tuple(one.noun for one in self.relations if not one.is_literal and one.target != "person")

    def draw_name(self, kind: str, rng: random.Random) -> str:
        """A name or literal value of this kind."""
        if kind in self.forms:
            place = rng.choice(self.pools[kind][0])
            return place if rng.random() < FORMLESS else f"{rng.choice(self.forms[kind])} {place}"
        return " ".join(rng.choice(pool) for pool in self.pools[kind])


LAPTOP = Lexicon(
    words={kind: kind for kind in KINDS},
    occupations=OCCUPATIONS,
    relations=RELATIONS,
    constraints=CONSTRAINTS,
    pools=names.POOLS,
    forms={"city": names.CITY_FORMS},
)
