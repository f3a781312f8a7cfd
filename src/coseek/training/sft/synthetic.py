"""Synthetic examples: training data of a laptop generator, questions of laptop worlds with gold and other passages.

Examples are made when drawn, with the passages in a new random order. The other passages are those that BM25 finds for
the question: look-alikes, namesakes and former values. A drill has 0 hops: its question lists names, each with a
relation, and its answer states these facts. It teaches to find the passage of a name, and the fact in it, before
questions must be understood.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.graders.generator import Generator, ReadingInput
from coseek.models.model import Tokenizer
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.sft.curriculum import hops_at
from coseek.training.sft.settings import Phase
from coseek.world.facts import Entity, Fact
from coseek.world.rationales import line, rationale
from coseek.world.world import World

NEIGHBOURS = 12
"""Number of BM25's passages per question, from which the other passages are drawn."""
DRILL_FACTS = 6
"""Maximum number of facts in a drill."""
GROWN = 0.4
"""Share of training after which examples may have the maximum number of passages."""
OF_ANOTHER_KIND = 0.3
"""Share of drills in which the kind of one entity is drawn again."""


@dataclass(frozen=True)
class SyntheticExample:
    """A question, the passages that answer it, and the target text."""

    question: Question
    passages: tuple[Passage, ...]
    written: str


@dataclass(frozen=True)
class WorldSampler:
    """Samples examples from one world."""

    world: World
    split: str

    @cached_property
    def questions(self) -> list[Question]:
        return [question for question in self.world.questions[self.split] if question.answerable]

    @cached_property
    def found(self) -> dict[str, list[Passage]]:
        """Question id → BM25's top passages for its text."""
        lists = Bm25.over(self.world.corpus).search([one.question for one in self.questions], NEIGHBOURS)
        return {one.id: [hit.passage for hit in hits] for one, hits in zip(self.questions, lists, strict=True)}

    @cached_property
    def entities(self) -> dict[str, list[Entity]]:
        """Entities with facts and a passage, by kind."""
        kinds: dict[str, list[Entity]] = {}
        for entity in self.world.oracle.facts.values():
            if entity.facts and self.world.corpus.has(entity.id):
                kinds.setdefault(entity.kind, []).append(entity)
        return kinds

    def passages(self, question: Question, count: int, rng: random.Random) -> tuple[Passage, ...]:
        """Return the gold passages and at least one other, if any, `count` in total, in random order."""
        gold = [self.world.corpus.by_id(ident) for ident in question.gold_ids]
        others = [passage for passage in self.found[question.id] if passage.id not in question.gold_ids]
        chosen = gold + rng.sample(others, min(len(others), max(1, count - len(gold))))
        rng.shuffle(chosen)
        return tuple(chosen)

    def example_of(self, question: Question, count: int, rng: random.Random) -> SyntheticExample:
        """Make an example of a question of the world with `count` passages."""
        passages = self.passages(question, count, rng)
        numbers = {passage.id: number for number, passage in enumerate(passages, start=1)}
        titles = {passage.id: passage.title for passage in passages}
        return SyntheticExample(question, passages, rationale(question, numbers, titles))

    def drill(self, count: int, rng: random.Random) -> SyntheticExample:
        """Make a drill on `count` entities, mostly of one kind: facts asked by name and relation, shuffled."""
        kind = rng.choice(sorted(self.entities))
        alike = self.entities[kind]
        chosen = rng.sample(alike, min(len(alike), count))
        if rng.random() < OF_ANOTHER_KIND:
            chosen[-1] = rng.choice(self.entities[rng.choice(sorted(self.entities))])
        numbered = list(enumerate(dict.fromkeys(chosen), start=1))
        facts = [(number, entity, fact) for number, entity in numbered for fact in entity.facts]
        rng.shuffle(facts)
        passages = tuple(self.world.corpus.by_id(entity.id) for _, entity in numbered)
        return replace(drill_of(facts[: rng.randint(1, DRILL_FACTS)]), passages=passages)


def drill_of(facts: Sequence[tuple[int, Entity, Fact]]) -> SyntheticExample:
    """Ask for facts by name and relation; each has the number of its passage. The example has no passages yet."""
    names = " ;".join(f" {entity.title.strip()} , {fact.noun}" for _, entity, fact in facts)
    lines = [line(entity.title, number, (fact.noun, fact.value)) for number, entity, fact in facts]
    return SyntheticExample(Question("drill", names.strip(), hops=0), (), "".join(lines))


@dataclass(frozen=True)
class ExampleWriter:
    """Draws examples and writes them as token ids, with the generator's prompt."""

    samplers: Sequence[WorldSampler]
    generator: Generator
    tokenizer: Tokenizer
    phases: Sequence[Phase]
    passages: tuple[int, int]
    """Minimum and maximum number of passages in an example."""

    @cached_property
    def by_hops(self) -> dict[int, list[tuple[WorldSampler, Question]]]:
        named: dict[int, list[tuple[WorldSampler, Question]]] = {0: []}
        for sampler in self.samplers:
            for question in sampler.questions:
                named.setdefault(question.hops or 0, []).append((sampler, question))
        return named

    def draw(self, done: float, rng: random.Random) -> Trajectory:
        """Draw an example at the share `done` of training."""
        hops = hops_at(self.phases, done, self.by_hops, rng)
        count = rng.randint(self.passages[0], self.most(done))
        if not hops:
            return self.write(rng.choice(self.samplers).drill(count, rng))
        sampler, question = rng.choice(self.by_hops[hops])
        return self.write(sampler.example_of(question, count, rng))

    def most(self, done: float) -> int:
        """Return the maximum number of passages: the minimum at first, then growing linearly until `GROWN`."""
        fewest, most = self.passages
        return fewest + round((most - fewest) * min(1.0, done / GROWN))

    def write(self, example: SyntheticExample) -> Trajectory:
        """Make a trajectory: the prompt is the environment's, the target text and the end token are the agent's."""
        prompt = self.generator.context(ReadingInput(example.question.question, example.passages)).prompt
        shown = tuple(self.tokenizer.encode_data(prompt))
        written = (*self.tokenizer.encode_data(example.written), self.tokenizer.eos_id)
        return Trajectory(
            question=example.question,
            protocol="generator",
            segments=(
                Segment(Author.ENVIRONMENT, "prompt", self.tokenizer.decode(shown), shown),
                Segment(Author.AGENT, "", self.tokenizer.decode(written), written, (0.0,) * len(written)),
            ),
            searches=(),
            stop=StopReason.COMPLETE,
        )
