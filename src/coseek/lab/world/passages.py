"""The texts of a laptop world's passages: one for each entity, and some with an outdated fact.

A space precedes every word and mark, so that a word is the same token everywhere.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from coseek.data.passage import Passage
from coseek.lab.world.facts import Entity, Fact, Facts
from coseek.lab.world.lexicon import Lexicon
from coseek.lab.world.settings import WorldSettings

MAX_WORDS = 48
"""Maximum number of words and marks in a passage's text."""


@dataclass(frozen=True, slots=True)
class WrittenWorld:
    """The passages of a world, and the entities with the facts that fit into them."""

    facts: Facts
    passages: dict[str, Passage]
    stale: tuple[tuple[Passage, str], ...]
    """Passages with only an outdated fact, each with the id of its entity."""


def spaced(words: str) -> str:
    """The text with a space in front, as in passages."""
    return f" {words}"


def write_passages(facts: Facts, settings: WorldSettings, lexicon: Lexicon, rng: random.Random) -> WrittenWorld:
    """Write every passage. Facts that do not fit into `MAX_WORDS` are dropped from the world."""
    facts_written: Facts = {}
    passages: dict[str, Passage] = {}
    for entity in facts.values():
        while len((text := _describe(entity, lexicon, settings.paraphrases, rng)).split()) > MAX_WORDS:
            entity = replace(entity, facts=entity.facts[:-1])
        facts_written[entity.id] = entity
        passages[entity.id] = Passage(entity.id, spaced(entity.title), spaced(text))
    return WrittenWorld(facts_written, passages, tuple(_outdated(facts_written.values(), lexicon, rng)))


def _describe(entity: Entity, lexicon: Lexicon, paraphrases: int, rng: random.Random) -> str:
    alias = f" , {rng.choice(lexicon.introductions[:paraphrases]).format(alias=entity.alias)} ," if entity.alias else ""
    article = "an" if entity.word[0] in "aeio" else "a"
    clauses = [_clause(fact, lexicon, paraphrases, rng) for fact in entity.facts]
    return lexicon.opening.format(
        title=entity.title, alias=alias, article=article, word=entity.word, clauses=" , ".join(clauses)
    )


def _clause(fact: Fact, lexicon: Lexicon, paraphrases: int, rng: random.Random) -> str:
    if fact.before and not fact.apart:
        return lexicon.beside.format(before=fact.before, noun=fact.noun, until=fact.until, value=fact.value)
    return rng.choice(fact.relation.clauses[:paraphrases]).format(o=fact.value)


def _outdated(entities: Iterable[Entity], lexicon: Lexicon, rng: random.Random) -> Iterator[tuple[Passage, str]]:
    outdated_facts = [(entity, fact) for entity in entities for fact in entity.facts if fact.before and fact.apart]
    for number, (entity, fact) in enumerate(outdated_facts, start=1):
        text = rng.choice(lexicon.apart).format(until=fact.until, noun=fact.noun, name=entity.title, before=fact.before)
        yield Passage(f"old-{number:04}", spaced(f"{entity.title} in {fact.until}"), spaced(text)), entity.id
