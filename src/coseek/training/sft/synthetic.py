"""Lessons: what a laptop generator learns from. Questions of throw-away worlds with their gold passages among others.

Made as they are drawn, with the passages in a new order every time. The passages beside the gold ones are what BM25
finds for the question: look-alikes, namesakes and former values. A drill has 0 hops: its question lists names, each
with a relation, and its lines tell just these facts. So finding the passage of a name and the fact in it are learnt
before questions must be understood.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.graders.generator import Generator, ReadingInput
from coseek.models.model import Tokenizer
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.sft.curriculum import hops_at
from coseek.training.sft.settings import Phase
from coseek.world.facts import Entity
from coseek.world.rationales import line, rationale
from coseek.world.world import World

NEIGHBOURS = 12
"""Passages that the ones beside the gold ones are drawn from."""
DRILL_FACTS = 6
"""Facts of a drill, at most."""
GROWN = 0.4
"""Share of training after which lessons may have as many passages as they ever have."""
OF_ANOTHER_KIND = 0.3
"""Share of drills in which one entity is of any kind."""


@dataclass(frozen=True)
class SyntheticExample:
    """A question, the passages to answer it from, and what is to be written."""

    question: Question
    passages: tuple[Passage, ...]
    written: str


@dataclass(frozen=True)
class WorldSampler:
    """One world with what BM25 finds for its questions."""

    world: World
    split: str

    @cached_property
    def questions(self) -> list[Question]:
        return self.world.questions[self.split]

    @cached_property
    def found(self) -> dict[str, list[Passage]]:
        """Question id → the best passages for its text."""
        lists = Bm25.over(self.world.corpus).search([one.question for one in self.questions], NEIGHBOURS)
        return {one.id: [hit.passage for hit in hits] for one, hits in zip(self.questions, lists, strict=True)}

    @cached_property
    def entities(self) -> dict[str, list[Entity]]:
        """Those with facts, by kind."""
        kinds: dict[str, list[Entity]] = {}
        for entity in self.world.oracle.facts.values():
            if entity.facts:
                kinds.setdefault(entity.kind, []).append(entity)
        return kinds

    def passages(self, question: Question, count: int, rng: random.Random) -> tuple[Passage, ...]:
        """The gold passages and others, `count` in all and at least one other, in random order."""
        gold = [self.world.corpus.by_id(ident) for ident in question.gold_ids]
        others = [passage for passage in self.found[question.id] if passage.id not in question.gold_ids]
        chosen = gold + rng.sample(others, min(len(others), max(1, count - len(gold))))
        rng.shuffle(chosen)
        return tuple(chosen)

    def lesson(self, question: Question, count: int, rng: random.Random) -> SyntheticExample:
        """A question of the world with `count` passages."""
        passages = self.passages(question, count, rng)
        numbers = {passage.id: number for number, passage in enumerate(passages, start=1)}
        titles = {passage.id: passage.title for passage in passages}
        return SyntheticExample(question, passages, rationale(question, numbers, titles))

    def drill(self, count: int, rng: random.Random) -> SyntheticExample:
        """Facts of `count` entities, most of them of one kind, asked for by name and relation in any order."""
        kind = rng.choice(sorted(self.entities))
        alike = self.entities[kind]
        chosen = rng.sample(alike, min(len(alike), count))
        if rng.random() < OF_ANOTHER_KIND:
            chosen[-1] = rng.choice(self.entities[rng.choice(sorted(self.entities))])
        numbered = list(enumerate(dict.fromkeys(chosen), start=1))
        told = [(number, entity, fact) for number, entity in numbered for fact in entity.facts]
        rng.shuffle(told)
        asked = told[: rng.randint(1, DRILL_FACTS)]
        names = " ;".join(f" {entity.title.strip()} , {fact.noun}" for _, entity, fact in asked)
        lines = [line(entity.title, number, (fact.noun, fact.value)) for number, entity, fact in asked]
        passages = tuple(self.world.corpus.by_id(entity.id) for _, entity in numbered)
        return SyntheticExample(Question("drill", names.strip(), hops=0), passages, "".join(lines))


@dataclass(frozen=True)
class ExampleWriter:
    """Draws lessons and writes them in a generator's own ids, with the prompt that it will be asked with."""

    rooms: Sequence[WorldSampler]
    generator: Generator
    tokenizer: Tokenizer
    phases: Sequence[Phase]
    passages: tuple[int, int]
    """Fewest and most passages of a lesson."""

    @cached_property
    def by_hops(self) -> dict[int, list[tuple[WorldSampler, Question]]]:
        named: dict[int, list[tuple[WorldSampler, Question]]] = {0: []}
        for room in self.rooms:
            for question in room.questions:
                named.setdefault(question.hops or 0, []).append((room, question))
        return named

    def draw(self, done: float, rng: random.Random) -> Trajectory:
        """A lesson for someone who has `done` of the training behind them."""
        hops = hops_at(self.phases, done, self.by_hops, rng)
        count = rng.randint(self.passages[0], self.most(done))
        if not hops:
            return self.write(rng.choice(self.rooms).drill(count, rng))
        room, question = rng.choice(self.by_hops[hops])
        return self.write(room.lesson(question, count, rng))

    def most(self, done: float) -> int:
        """Passages of a lesson at most: the fewest at first, all of them from `GROWN` on."""
        fewest, most = self.passages
        return fewest + round((most - fewest) * min(1.0, done / GROWN))

    def write(self, lesson: SyntheticExample) -> Trajectory:
        """The prompt as environment, the lines and the end of text as what is to be learnt."""
        prompt = self.generator.context(ReadingInput(lesson.question.question, lesson.passages)).prompt
        shown = tuple(self.tokenizer.encode_data(prompt))
        written = (*self.tokenizer.encode_data(lesson.written), self.tokenizer.eos_id)
        return Trajectory(
            question=lesson.question,
            protocol="generator",
            segments=(
                Segment(Author.ENVIRONMENT, "prompt", self.tokenizer.decode(shown), shown),
                Segment(Author.AGENT, "", self.tokenizer.decode(written), written, (0.0,) * len(written)),
            ),
            searches=(),
            stop=StopReason.COMPLETE,
        )
