"""Facts: the entities of a world and what is true of each, by seed."""

import random
from collections import Counter
from dataclasses import dataclass, replace

from coseek.core.files import JsonObject
from coseek.world.names import YEARS, Namer, draw_name
from coseek.world.relations import BY_KIND, BY_NOUN, OCCUPATIONS, Relation
from coseek.world.settings import ENTITIES, WorldSettings

PERSON_FACTS = 4
"""How many of the relations of a person are known: a passage is short."""

NO_ALIAS = ("country",)
MIN_CHANGE = 5
"""A former value ended at least so many years after the pool of years begins."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of one relation, as the entity's own passage states it."""

    noun: str
    """The relation."""
    value: str
    """The value in the words of the passage: a title, a second name, or a literal."""
    object_id: str | None = None
    """The entity that the value names; `None` for a literal."""
    before: str = ""
    """A former value, no longer true; empty when none is told."""
    until: str = ""
    """The year in which the former value ended."""
    apart: bool = False
    """The former value is told in a passage of its own rather than beside the present one."""

    @property
    def relation(self) -> Relation:
        return BY_NOUN[self.noun]

    def to_json(self) -> JsonObject:
        row: JsonObject = {"noun": self.noun, "value": self.value, "object_id": self.object_id}
        return row | {"before": self.before, "until": self.until, "apart": self.apart} if self.before else row


@dataclass(frozen=True, slots=True)
class Entity:
    """Something that a passage is about; its id is the id of that passage."""

    id: str
    kind: str
    word: str
    """What the passage calls it: the occupation of a person, else the kind."""
    name: str
    title: str
    """The name, with the word in parentheses when something else bears the same name."""
    alias: str = ""
    """A second name, borne by nothing else; empty when there is none."""
    facts: tuple[Fact, ...] = ()

    def fact(self, noun: str) -> Fact | None:
        """What is known of this relation, if anything."""
        return next((fact for fact in self.facts if fact.noun == noun), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything it is called, the title first; what a judge accepts."""
        return tuple(dict.fromkeys(name for name in (self.title, self.name, self.alias) if name))

    def to_json(self) -> JsonObject:
        return {
            "id": self.id, "kind": self.kind, "word": self.word, "name": self.name, "title": self.title,
            "alias": self.alias, "facts": [fact.to_json() for fact in self.facts],
        }  # fmt: skip


Facts = dict[str, Entity]
"""All entities of a world, by id."""


def make_facts(settings: WorldSettings, rng: random.Random) -> Facts:
    """Name the entities, then relate them."""
    entities = _make_entities(settings, rng)
    relater = _Relater(entities, settings, rng)
    return {entity.id: replace(entity, facts=relater.relate(entity)) for entity in entities}


def _make_entities(settings: WorldSettings, rng: random.Random) -> list[Entity]:
    namer = Namer(rng, settings.lookalikes)
    counts = ENTITIES[settings.size]
    # Kinds in turn would let every look-alike title copy an earlier kind; mixed, any kind may come first.
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    made: list[Entity] = []
    people: list[Entity] = []
    numbers = dict.fromkeys(counts, 0)
    for kind in kinds:
        numbers[kind] += 1
        word = rng.choice(OCCUPATIONS) if kind == "person" else kind
        name = _namesake(people, word, settings, rng) if kind == "person" else ""
        name = name or namer.name(kind)
        entity = Entity(f"{kind}-{numbers[kind]:04}", kind, word, name, name)
        made.append(entity)
        if kind == "person":
            people.append(entity)
    shared = _shared_names(made)
    return [_with_title(entity, entity.name in shared, namer, settings, rng) for entity in made]


def _namesake(people: list[Entity], word: str, settings: WorldSettings, rng: random.Random) -> str:
    """The name of an earlier person of another occupation, or '' for a name of one's own."""
    if not people or rng.random() >= settings.namesakes:
        return ""
    name = rng.choice(people).name
    return "" if any(other.name == name and other.word == word for other in people) else name


def _shared_names(entities: list[Entity]) -> set[str]:
    counts = Counter(entity.name for entity in entities)
    return {name for name, count in counts.items() if count > 1}


def _with_title(entity: Entity, shared: bool, namer: Namer, settings: WorldSettings, rng: random.Random) -> Entity:
    alias = ""
    if entity.kind not in NO_ALIAS and rng.random() < settings.aliases:
        alias = namer.alias(entity.kind)
    title = f"{entity.name} ( {entity.word} )" if shared else entity.name
    return replace(entity, title=title, alias=alias)


class _Relater:
    """Draws the values of the relations."""

    def __init__(self, entities: list[Entity], settings: WorldSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._pools: dict[str, list[Entity]] = {}
        for entity in entities:
            self._pools.setdefault(entity.kind, []).append(entity)
            if entity.kind == "person":
                self._pools.setdefault(entity.word, []).append(entity)
        self._spouse = self._couples()

    def relate(self, entity: Entity) -> tuple[Fact, ...]:
        relations = [relation for relation in BY_KIND[entity.kind] if self._possible(entity, relation)]
        self._rng.shuffle(relations)
        if entity.kind == "person":
            relations = relations[:PERSON_FACTS]
        return tuple(self._make_fact(entity, relation) for relation in relations)

    def _couples(self) -> dict[str, Entity]:
        """Marriage goes both ways, so it is settled before anything else; an odd one stays single."""
        people = list(self._pools["person"])
        self._rng.shuffle(people)
        pairs = list(zip(people[::2], people[1::2], strict=False))
        return {one.id: other for pair in pairs for one, other in (pair, pair[::-1]) if one.name != other.name}

    def _possible(self, entity: Entity, relation: Relation) -> bool:
        return relation.noun != "spouse" or entity.id in self._spouse

    def _make_fact(self, entity: Entity, relation: Relation) -> Fact:
        value, object_id = self._value(entity, relation, avoid="")
        if not relation.changes or self._rng.random() >= self._settings.outdated:
            return Fact(relation.noun, value, object_id)
        before, _ = self._value(entity, relation, avoid=object_id or "")
        until = self._rng.choice(YEARS[MIN_CHANGE:])
        return Fact(relation.noun, value, object_id, before, until, apart=self._rng.random() < 0.5)

    def _value(self, entity: Entity, relation: Relation, avoid: str) -> tuple[str, str | None]:
        """A value other than the entity itself and other than `avoid`, in the words that the passage will use."""
        if relation.is_literal:
            return draw_name(relation.target, self._rng), None
        chosen = self._spouse[entity.id] if relation.noun == "spouse" else self._draw(entity, relation, avoid)
        by_alias = chosen.alias and self._rng.random() < self._settings.alias_use
        return chosen.alias if by_alias else chosen.title, chosen.id

    def _draw(self, entity: Entity, relation: Relation, avoid: str) -> Entity:
        pool = self._pools[relation.target]
        fitting = self._pools.get(relation.occupation, [])
        # A tiny world may have too few people of an occupation to tell two apart; then anybody does.
        pool = fitting if len(fitting) > 2 else pool
        while (chosen := self._rng.choice(pool)).id in (entity.id, avoid):
            pass
        return chosen
