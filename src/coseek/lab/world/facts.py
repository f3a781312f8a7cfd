"""The entities of a laptop world and their facts, drawn by seed."""

import random
from collections import Counter
from dataclasses import dataclass, replace

from coseek.core.files import JsonObject
from coseek.core.record import Record
from coseek.lab.world.lexicon import TITLED, Lexicon, Relation
from coseek.lab.world.settings import ENTITIES, WorldSettings

PERSON_FACTS = 4
"""Maximum number of relations of a person."""
NO_ALIAS = ("country",)
MIN_CHANGE = 5
"""Position among the years of the earliest end of a former value."""
VERBATIM = 0.6
"""Share of look-alike titles that repeat a whole title rather than one word."""


@dataclass(frozen=True, slots=True)
class Fact(Record):
    """One value of one relation of an entity."""

    relation: Relation
    value: str
    """The value as the passage writes it: a title, an alias, or a literal."""
    object_id: str | None = None
    """The entity that the value names; `None` for a literal."""
    before: str = ""
    """An outdated value; empty without one."""
    until: str = ""
    """The last year of the outdated value."""
    apart: bool = False
    """Whether the outdated value has a separate passage."""

    @property
    def noun(self) -> str:
        """The name of the relation."""
        return self.relation.noun

    def to_json(self) -> JsonObject:
        row: JsonObject = {"noun": self.noun, "value": self.value, "object_id": self.object_id}
        return row | {"before": self.before, "until": self.until, "apart": self.apart} if self.before else row


@dataclass(frozen=True, slots=True)
class Entity(Record):
    """The subject of a passage; its id is the passage's id."""

    id: str
    kind: str
    word: str
    """The occupation of a person, else the kind."""
    name: str
    title: str
    """The name, with the word in parentheses where the name is ambiguous."""
    alias: str = ""
    """A unique second name; empty without one."""
    facts: tuple[Fact, ...] = ()

    def fact(self, noun: str) -> Fact | None:
        """The fact of this relation, if there is one."""
        return next((fact for fact in self.facts if fact.noun == noun), None)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the title first: the answers that the oracle accepts."""
        return tuple(dict.fromkeys(name for name in (self.title, self.name, self.alias) if name))


Facts = dict[str, Entity]
"""All entities of a world, by id."""


def make_facts(settings: WorldSettings, lexicon: Lexicon, rng: random.Random) -> Facts:
    """Draw the entities, then their facts."""
    entities = _make_entities(settings, lexicon, rng)
    facts = _FactSampler(entities, settings, lexicon, rng)
    return {entity.id: replace(entity, facts=facts.sample(entity)) for entity in entities}


def _make_entities(settings: WorldSettings, lexicon: Lexicon, rng: random.Random) -> list[Entity]:
    namer = Namer(lexicon, rng, settings.lookalikes)
    counts = ENTITIES[settings.size]
    # In mixed order, so that look-alike titles copy from every kind.
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    entities: list[Entity] = []
    people: list[Entity] = []
    numbers = dict.fromkeys(counts, 0)
    for kind in kinds:
        numbers[kind] += 1
        word = rng.choice(lexicon.occupations) if kind == "person" else lexicon.words[kind]
        name = _shared_name(people, word, settings, rng) if kind == "person" else ""
        name = name or namer.name(kind)
        entity = Entity(f"{kind}-{numbers[kind]:04}", kind, word, name, name)
        entities.append(entity)
        if kind == "person":
            people.append(entity)
    bearers, titled_entities = Counter(entity.name for entity in entities), list[Entity]()
    for entity in entities:
        has_alias = entity.kind not in NO_ALIAS and rng.random() < settings.aliases
        alias = namer.alias(entity.kind) if has_alias else ""
        title = f"{entity.name} ( {entity.word} )" if bearers[entity.name] > 1 else entity.name
        titled_entities.append(replace(entity, title=title, alias=alias))
    return titled_entities


def _shared_name(people: list[Entity], word: str, settings: WorldSettings, rng: random.Random) -> str:
    """The name of an earlier person of another occupation, or '' for a new name."""
    if not people or rng.random() >= settings.namesakes:
        return ""
    name = rng.choice(people).name
    return "" if any(other.name == name and other.word == word for other in people) else name


class _FactSampler:
    """Draws the facts of entities."""

    def __init__(self, entities: list[Entity], settings: WorldSettings, lexicon: Lexicon, rng: random.Random) -> None:
        self._lexicon = lexicon
        self._settings = settings
        self._rng = rng
        self._pools: dict[str, list[Entity]] = {}
        for entity in entities:
            self._pools.setdefault(entity.kind, []).append(entity)
            if entity.kind == "person":
                self._pools.setdefault(entity.word, []).append(entity)
        # Marriage is symmetric, so couples are drawn first; an odd one stays single.
        people = list(self._pools["person"])
        rng.shuffle(people)
        pairs = list(zip(people[::2], people[1::2], strict=False))
        couples = [couple for couple in pairs if couple[0].name != couple[1].name]
        self._spouse = {person.id: spouse for couple in couples for person, spouse in (couple, couple[::-1])}

    def sample(self, entity: Entity) -> tuple[Fact, ...]:
        married = entity.id in self._spouse
        relations = [
            relation for relation in self._lexicon.by_kind[entity.kind] if relation.noun != "spouse" or married
        ]
        self._rng.shuffle(relations)
        if entity.kind == "person":
            relations = relations[:PERSON_FACTS]
        return tuple(self._make_fact(entity, relation) for relation in relations)

    def _make_fact(self, entity: Entity, relation: Relation) -> Fact:
        value, object_id = self._draw_value(entity, relation, avoid="")
        if not relation.changes or self._rng.random() >= self._settings.outdated:
            return Fact(relation, value, object_id)
        before, _ = self._draw_value(entity, relation, avoid=object_id or "")
        until = self._rng.choice(self._lexicon.pools["year"][0][MIN_CHANGE:])
        return Fact(relation, value, object_id, before, until, apart=self._rng.random() < 0.5)

    def _draw_value(self, entity: Entity, relation: Relation, avoid: str) -> tuple[str, str | None]:
        """A value other than the entity itself and `avoid`, as the passage writes it, and its entity's id."""
        if relation.is_literal:
            return self._lexicon.draw_name(relation.target, self._rng), None
        chosen = self._spouse[entity.id] if relation.noun == "spouse" else self._draw_entity(entity, relation, avoid)
        by_alias = chosen.alias and self._rng.random() < self._settings.alias_use
        return chosen.alias if by_alias else chosen.title, chosen.id

    def _draw_entity(self, entity: Entity, relation: Relation, avoid: str) -> Entity:
        pool = self._pools[relation.target]
        fitting = self._pools.get(relation.occupation, [])
        # A tiny world may have too few people of an occupation; then anybody is drawn.
        pool = fitting if len(fitting) > 2 else pool
        while (chosen := self._rng.choice(pool)).id in (entity.id, avoid):
            pass
        return chosen


class Namer:
    """Draws names that are unique within a kind, and aliases that are unique overall."""

    def __init__(self, lexicon: Lexicon, rng: random.Random, lookalikes: float) -> None:
        self._lexicon = lexicon
        self._rng = rng
        self._lookalikes = lookalikes
        self._titles: list[tuple[str, str]] = []
        self._taken: set[tuple[str, str]] = set()
        self._names: set[str] = set()

    def name(self, kind: str) -> str:
        """A name that is new for this kind; a title may repeat that of another kind."""
        name = self._lookalike(kind) if kind in TITLED and self._rng.random() < self._lookalikes else ""
        return self._register(kind, name or self._fresh_name(kind))

    def alias(self, kind: str) -> str:
        """A name of no other entity."""
        return self._register(kind, self._fresh_name(kind))

    def _register(self, kind: str, name: str) -> str:
        self._taken.add((kind, name))
        self._names.add(name)
        if kind in TITLED:
            self._titles.append((kind, name))
        return name

    def _fresh_name(self, kind: str) -> str:
        # Terminates: every pool is larger than the largest world's names and aliases.
        while (name := self._lexicon.draw_name(kind, self._rng)) in self._names:
            pass
        return name

    def _lookalike(self, kind: str) -> str:
        """Another title, or one word of it with another word; '' when none fits."""
        if not self._titles:
            return ""
        other_kind, name = self._rng.choice(self._titles)
        if self._rng.random() >= VERBATIM:
            adjective, noun = self._lexicon.draw_name(kind, self._rng).split()
            first, last = name.split()
            name = f"{first} {noun}" if self._rng.random() < 0.5 else f"{adjective} {last}"
            return "" if name in self._names else name
        return "" if other_kind == kind or (kind, name) in self._taken else name
