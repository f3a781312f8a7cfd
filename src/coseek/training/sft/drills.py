"""Drills: reading exercises of two passages, with every fact in them stated as in a demonstration's thought.

Extracting a value from a passage is what an untrained policy learns last. A demonstration has about one such value per
hundred tokens, a drill about eight. A drill is a trajectory of a question with 0 hops, so that a curriculum can select
drills.
"""

import random
from collections.abc import Iterator

from coseek.agents.protocol import Protocol
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.models.model import Tokenizer
from coseek.world.facts import Entity
from coseek.world.world import World

MAX_OBSERVATION_TOKENS = 256


def make_drills(
    world: World, protocol: Protocol, tokenizer: Tokenizer, count: int, rng: random.Random
) -> Iterator[Trajectory]:
    """Make `count` drills over a laptop world. Half of them pair two entities of one kind, told apart by name."""
    entities = [one for one in world.oracle.facts.values() if one.facts and world.corpus.has(one.id)]
    alike: dict[str, list[Entity]] = {}
    for entity in entities:
        alike.setdefault(entity.kind, []).append(entity)
    for number in range(count):
        first = rng.choice(entities)
        second = rng.choice(alike[first.kind] if rng.random() < 0.5 else entities)
        yield _drill(f"drill-{number}", world, (first, second), protocol, tokenizer, rng)


def _drill(
    ident: str,
    world: World,
    entities: tuple[Entity, Entity],
    protocol: Protocol,
    tokenizer: Tokenizer,
    rng: random.Random,
) -> Trajectory:
    hits = [Hit(world.corpus.by_id(entity.id), 0.0) for entity in dict.fromkeys(entities)]
    shown = protocol.template.observation_ids(tokenizer, hits, MAX_OBSERVATION_TOKENS)
    sentences = [
        f" The {fact.noun} of {rng.choice(entity.names)} is {fact.value} ."
        for entity in dict.fromkeys(entities)
        for fact in entity.facts
    ]
    rng.shuffle(sentences)
    think = protocol.tag_for(Author.AGENT)  # a protocol without a thought (s3) gets the bare facts
    opening, closing = (think.opening, think.closing) if think is not None else ("", "")
    ids = (*tokenizer.encode(opening), *tokenizer.encode_data("".join(sentences)), *tokenizer.encode(closing))
    return Trajectory(
        question=Question(ident, "", hops=0),
        protocol=protocol.name,
        segments=(
            Segment(Author.ENVIRONMENT, protocol.observation_tag, tokenizer.decode(shown), shown),
            Segment(Author.AGENT, think.name if think else "", tokenizer.decode(ids), ids, (0.0,) * len(ids)),
        ),
        searches=(),
        stop=StopReason.COMPLETE,
    )
