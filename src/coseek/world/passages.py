"""Passages: the grammar that puts facts into text. One passage tells one entity; some tell what is no longer true.

A space stands before every word and every mark, so that a word is the same token wherever it stands.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from coseek.data.passage import Passage
from coseek.world.facts import Entity, Fact, Facts
from coseek.world.settings import WorldSettings

MAX_WORDS = 48
"""Words and marks in the text of one passage."""

INTRODUCTIONS = ("also called {alias}", "also known as {alias}", "known as {alias}")
"""How a passage introduces a second name."""

BESIDE = "with {before} as {noun} until {until} and {value} since then"
"""A former value beside the present one."""

APART = (
    "An old guide of {until} tells that the {noun} of {name} was {before} . All this has changed since .",
    "In {until} the {noun} of {name} was still {before} . Soon after that it was another .",
)
"""A former value in a passage of its own; it never says what holds today."""


@dataclass(frozen=True, slots=True)
class StalePassage:
    """A passage that tells only what was true of an entity once."""

    passage: Passage
    entity_id: str
    noun: str


@dataclass(frozen=True, slots=True)
class WrittenWorld:
    """A world in words: the entities with the facts that their passages had room for."""

    facts: Facts
    passages: dict[str, Passage]
    stale: tuple[StalePassage, ...]


def spaced(words: str) -> str:
    """Text as the world writes it: a space in front too."""
    return f" {words}"


def write_passages(facts: Facts, settings: WorldSettings, rng: random.Random) -> WrittenWorld:
    """Write every passage. A fact that would make a passage too long is not told, and so is not known."""
    told: Facts = {}
    passages: dict[str, Passage] = {}
    for entity in facts.values():
        told[entity.id], text = _fit(entity, settings.paraphrases, rng)
        passages[entity.id] = Passage(entity.id, spaced(entity.title), spaced(text))
    return WrittenWorld(told, passages, tuple(_tell_apart(told.values(), rng)))


def _fit(entity: Entity, paraphrases: int, rng: random.Random) -> tuple[Entity, str]:
    while len((text := _describe(entity, paraphrases, rng)).split()) > MAX_WORDS:
        entity = replace(entity, facts=entity.facts[:-1])
    return entity, text


def _describe(entity: Entity, paraphrases: int, rng: random.Random) -> str:
    alias = f" , {rng.choice(INTRODUCTIONS[:paraphrases]).format(alias=entity.alias)} ," if entity.alias else ""
    article = "an" if entity.word[0] in "aeio" else "a"
    clauses = [_clause(fact, paraphrases, rng) for fact in entity.facts]
    return f"{entity.title}{alias} is {article} {entity.word} {' , '.join(clauses)} ."


def _clause(fact: Fact, paraphrases: int, rng: random.Random) -> str:
    if fact.before and not fact.apart:
        return BESIDE.format(before=fact.before, noun=fact.noun, until=fact.until, value=fact.value)
    return rng.choice(fact.relation.clauses[:paraphrases]).format(o=fact.value)


def _tell_apart(entities: Iterable[Entity], rng: random.Random) -> Iterator[StalePassage]:
    number = 0
    for entity in entities:
        for fact in entity.facts:
            if fact.before and fact.apart:
                number += 1
                text = rng.choice(APART).format(until=fact.until, noun=fact.noun, name=entity.title, before=fact.before)
                passage = Passage(f"old-{number:04}", spaced(f"{entity.title} in {fact.until}"), spaced(text))
                yield StalePassage(passage, entity.id, fact.noun)
