"""Drills: reading exercises of two passages, with every fact in them stated as in a demonstration's thought.

Extracting a value from a passage is what an untrained policy learns last. A demonstration has about one such value per
hundred tokens, a drill about eight. Some drills ask for single facts, and reply that a fact is not found where its
passage is missing: a demonstration has about one such decision per search. A drill is a trajectory of a question with 0
hops, so that a curriculum can select drills.
"""

import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from coseek.agents.protocol import Protocol
from coseek.agents.tag import Action
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory
from coseek.lab.world.facts import Entity
from coseek.lab.world.rationales import MISSED, NEXT, line
from coseek.lab.world.world import World
from coseek.models.model import Tokenizer
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25

MAX_OBSERVATION_TOKENS = 256
SHOWN, ASKED = 2, 3
"""Maximum number of passages of a drill, and of requested facts of its entity."""
OTHERS = 1
"""Maximum number of requested facts of each other entity."""
SYMMETRIC = "spouse"
"""A fact that the other entity's passage states as well."""

Drill: TypeAlias = tuple[list[Hit], list[tuple[str, str]]]
"""The passages of a drill, and its lines: the request, if any, and the reply."""


def make_drills(
    world: World, protocol: Protocol, tokenizer: Tokenizer, count: int, rng: random.Random, asking: float = 0.0
) -> Iterator[Trajectory]:
    """Make `count` drills over a laptop world. Half of them pair two entities of one kind, which differ by name. A
    share `asking` shows BM25's hits for an entity, in half of the cases without its own passage, and asks for facts of
    it and of the other entities shown."""
    entities = [entity for entity in world.oracle.facts.values() if entity.facts and world.corpus.has(entity.id)]
    by_kind: dict[str, list[Entity]] = {}
    for entity in entities:
        by_kind.setdefault(entity.kind, []).append(entity)
    retriever = Bm25.over(world.corpus) if asking else None
    for number in range(count):
        first = rng.choice(entities)
        if retriever is not None and rng.random() < asking:
            drill = _ask_facts(world, first, retriever, rng) or _tell_facts(world, (first,), rng)
        else:
            second = rng.choice(by_kind[first.kind] if rng.random() < 0.5 else entities)
            drill = _tell_facts(world, (first, second), rng)
        yield _drill_trajectory(f"drill-{number}", *drill, protocol, tokenizer)


def _tell_facts(world: World, entities: Sequence[Entity], rng: random.Random) -> Drill:
    """All facts of some entities."""
    shown = list(dict.fromkeys(entities))
    lines = [
        line(entity.title, number, (fact.noun, fact.value))
        for number, entity in enumerate(shown, 1)
        for fact in entity.facts
    ]
    rng.shuffle(lines)
    return [Hit(world.corpus.by_id(entity.id), 0.0) for entity in shown], [("", "".join(lines))]


def _ask_facts(world: World, entity: Entity, retriever: Retriever, rng: random.Random) -> Drill | None:
    """Ask for some facts of an entity and of its neighbours in a search; `None` if no fact can be asked for."""
    name, is_missing = rng.choice(_clear_names(entity)), rng.random() < 0.5
    (ranked,) = retriever.search([f"{name} {rng.choice(entity.facts).noun}"], SHOWN + 1)
    hits = [hit for hit in ranked if not is_missing or hit.passage.id != entity.id][:SHOWN]
    numbers = {hit.passage.id: number for number, hit in enumerate(hits, 1)}
    lines: list[tuple[str, str]] = []
    facts = world.oracle.facts
    neighbours = [facts[other] for other in sorted(numbers.keys() - {entity.id}) if other in facts]
    for subject, limit in ((entity, ASKED), *((other, OTHERS) for other in neighbours)):
        mention = name if subject is entity else rng.choice(_clear_names(subject))
        for fact in rng.sample(subject.facts, min(limit, len(subject.facts))):
            request = f"{NEXT} the {fact.noun} of {mention} ."
            if subject.id in numbers:
                lines.append((request, line(subject.title, numbers[subject.id], (fact.noun, fact.value))))
            elif fact.noun != SYMMETRIC:
                lines.append((request, MISSED))
    rng.shuffle(lines)
    return (hits, lines) if lines else None


def _clear_names(entity: Entity) -> list[str]:
    """The names that no other entity has."""
    return [name for name in entity.names if name != entity.name or entity.name == entity.title]


def _drill_trajectory(
    ident: str, hits: Sequence[Hit], lines: Sequence[tuple[str, str]], protocol: Protocol, tokenizer: Tokenizer
) -> Trajectory:
    """Passages, then the lines: requests, which are not learnt, and replies."""
    ids = protocol.template.block_ids(tokenizer, [Search("", tuple(hits))], MAX_OBSERVATION_TOKENS)
    thought_tag = protocol.grammar.agent_tags.get(Action.NONE)  # a protocol without a thought (s3) gets the bare facts
    opening, closing = (thought_tag.opening, thought_tag.closing) if thought_tag is not None else ("", "")
    tag = thought_tag.name if thought_tag else ""

    def segment(author: Author, opening: str, text: str, closing: str) -> Segment:
        ids = (*tokenizer.encode(opening), *tokenizer.encode_data(text), *tokenizer.encode(closing))
        learnt = author is Author.AGENT
        return Segment(author, tag if learnt else "", tokenizer.decode(ids), ids, (0.0,) * len(ids) if learnt else ())

    segments = [Segment(Author.ENVIRONMENT, protocol.grammar.observation, tokenizer.decode(ids), ids)]
    if requests := "".join(sorted(request for request, _ in lines)):
        # Before the passages as well, as in an episode: else a name that occurs twice would mean a found passage.
        segments.insert(0, segment(Author.ENVIRONMENT, opening, requests, closing))
    for number, (request, reply) in enumerate(lines, start=1):
        parts = [(Author.ENVIRONMENT, request)] if request else []
        for author, text in [*parts, (Author.AGENT, reply)]:
            ending = closing if author is Author.AGENT and number == len(lines) else ""
            segments.append(segment(author, opening, text, ending))
            opening = ""
    return Trajectory(Question(ident, "", hops=0), protocol.name, tuple(segments), (), StopReason.COMPLETE)
