"""Synthetic examples: training data of a laptop model that reads, questions with gold and other passages.

They are of a laptop world, or of a user's corpus where the path of a question is known. Examples are made when drawn,
with the passages in a new random order. The other passages are those that BM25 finds for the question: look-alikes,
namesakes and former values. A drill has 0 hops: its question lists names, each with a relation, and its answer states
these facts. It teaches to find the passage of a name, and the fact in it, before questions must be understood.
"""

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, Step, has_plan, plan_of
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.graders.generator import Generator, ReadingInput
from coseek.lab.world.passages import spaced
from coseek.lab.world.rationales import StatedFact, fact_of, line, rationale, recalled
from coseek.lab.world.world import World
from coseek.models.model import Tokenizer
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.sft.settings import Phase, hops_at

NEIGHBOURS = 12
"""Number of BM25's passages per question, from which the other passages are drawn."""
DRILL_FACTS = 6
"""Maximum number of facts in a drill."""
GROWN = 0.4
"""Share of training after which examples may have the maximum number of passages."""
KNOWN_SHARE = 1 / 3
"""Share of a generator's examples that are of known facts, where there are some."""
OF_ANOTHER_KIND = 0.3
"""Share of drills in which the kind of one entity is drawn again."""


@dataclass(frozen=True)
class SyntheticExample:
    """A question, the passages that answer it, and the target text."""

    question: Question
    passages: tuple[Passage, ...]
    written: str


class ExampleSampler(ABC):
    """Samples examples from one corpus."""

    @property
    @abstractmethod
    def corpus(self) -> Corpus:
        """The passages."""

    @property
    @abstractmethod
    def questions(self) -> Sequence[Question]:
        """Answerable questions with a plan, whose gold passages are in the corpus."""

    @property
    def supported(self) -> Sequence[Question]:
        """Questions whose gold passages are known, with a plan or without."""
        return self.questions

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Sequence[StatedFact]]:
        """Passage id → what it states."""

    @property
    @abstractmethod
    def alike(self) -> Mapping[str, Sequence[str]]:
        """Kind → ids of passages with facts that are easily mistaken for each other."""

    def draw_question(self, rng: random.Random) -> Question:
        """Draw a question with a plan."""
        return rng.choice(self.questions)

    @cached_property
    def found(self) -> dict[str, list[Passage]]:
        """Question id → BM25's top passages for its text."""
        lists = Bm25.over(self.corpus).search([question.question for question in self.supported], NEIGHBOURS)
        return {
            question.id: [hit.passage for hit in hits] for question, hits in zip(self.supported, lists, strict=True)
        }

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """Relation of a question's last step → the values that it leads to."""
        values: defaultdict[str, list[str]] = defaultdict(list)
        for last in (plan_of(question)[-1] for question in self.questions):
            values[last.relation].append(last.sub_answer)
        return values

    def passages(self, question: Question, count: int, rng: random.Random) -> tuple[Passage, ...]:
        """Return the gold passages and others, if any, `count` in total, in random order: the gold ones alone where
        `count` is 1, else at least one other."""
        gold = [self.corpus.by_id(ident) for ident in question.gold_ids]
        others = [passage for passage in self.found[question.id] if passage.id not in question.gold_ids]
        wanted = max(1, count - len(gold)) if count > 1 else 0
        passages = gold + rng.sample(others, min(len(others), wanted))
        rng.shuffle(passages)
        return tuple(passages)

    def example_of(self, question: Question, count: int, rng: random.Random) -> SyntheticExample:
        """Make an example of a question with a plan, with `count` passages."""
        passages = self.passages(question, count, rng)
        return SyntheticExample(question, passages, rationale(question, passages, self.facts))

    def drill(self, count: int, rng: random.Random) -> SyntheticExample:
        """Make a drill on `count` passages, mostly of one kind: facts asked by name and relation, shuffled."""
        similar_ids = self.alike[rng.choice(sorted(self.alike))]
        idents = rng.sample(similar_ids, min(len(similar_ids), count))
        if rng.random() < OF_ANOTHER_KIND:
            idents[-1] = rng.choice(self.alike[rng.choice(sorted(self.alike))])
        numbered = list(enumerate(dict.fromkeys(idents), start=1))
        facts = [(number, fact) for number, ident in numbered for fact in self.facts[ident]]
        rng.shuffle(facts)
        passages = tuple(self.corpus.by_id(ident) for _, ident in numbered)
        return replace(drill_of(facts[: rng.randint(1, DRILL_FACTS)]), passages=passages)


@dataclass(frozen=True)
class WorldSampler(ExampleSampler):
    """Samples examples from one laptop world."""

    world: World
    split: str

    def recalled(self, most: int, rng: random.Random) -> SyntheticExample:
        """An example of a known question, with at most `most` passages, none of which is gold."""
        question = rng.choice(self.questions)
        others = [passage for passage in self.found[question.id] if passage.id not in question.gold_ids]
        return SyntheticExample(question, tuple(others[:most]), recalled(question))

    @property
    def corpus(self) -> Corpus:
        return self.world.corpus

    @cached_property
    def questions(self) -> list[Question]:
        return [question for question in self.world.questions[self.split] if question.answerable]

    @cached_property
    def facts(self) -> dict[str, list[StatedFact]]:
        return {
            entity.id: [StatedFact(entity.title, fact.noun, fact.value) for fact in entity.facts]
            for entity in self.world.oracle.facts.values()
        }

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        kinds: dict[str, list[str]] = {}
        for entity in self.world.oracle.facts.values():
            if entity.facts and self.world.corpus.has(entity.id):
                kinds.setdefault(entity.kind, []).append(entity.id)
        return kinds


def drill_of(facts: Sequence[tuple[int, StatedFact]]) -> SyntheticExample:
    """Ask for facts by name and relation; each has the number of its passage. The example has no passages yet."""
    names = " ;".join(f" {fact.title.strip()} , {fact.relation}" for _, fact in facts)
    lines = [line(fact.title, number, (fact.relation, fact.value)) for number, fact in facts]
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
    known: WorldSampler | None = None
    """Questions that are answered from no passage."""

    @cached_property
    def by_hops(self) -> dict[int, list[tuple[WorldSampler, Question]]]:
        by_hops: dict[int, list[tuple[WorldSampler, Question]]] = {0: []}
        for sampler in self.samplers:
            for question in sampler.questions:
                by_hops.setdefault(question.hops or 0, []).append((sampler, question))
        return by_hops

    @cached_property
    def everything(self) -> list[tuple[WorldSampler, Question]]:
        """All questions, which are drawn where the phases name no hops of theirs."""
        return [(sampler, question) for sampler in self.samplers for question in sampler.questions]

    def draw(self, done: float, rng: random.Random) -> Trajectory:
        """Draw an example at the share `done` of training."""
        if self.known is not None and rng.random() < KNOWN_SHARE:
            return self.write(self.known.recalled(rng.randint(0, self.most(done)), rng))
        hops = hops_at(self.phases, done, self.by_hops, rng)
        count = rng.randint(self.passages[0], self.most(done))
        if hops == 0:
            return self.write(rng.choice(self.samplers).drill(count, rng))
        sampler, question = rng.choice(self.everything if hops is None else self.by_hops[hops])
        return self.write(sampler.example_of(question, count, rng))

    def most(self, done: float) -> int:
        """Return the maximum number of passages: the minimum at first, then growing linearly until `GROWN`."""
        least, most = self.passages
        return least + round((most - least) * min(1.0, done / GROWN))

    def write(self, example: SyntheticExample) -> Trajectory:
        """Make a trajectory: the prompt is the environment's, the target text and the end token are the agent's."""
        prompt = self.generator.context(ReadingInput(example.question.question, example.passages)).prompt
        prompt_ids = tuple(self.tokenizer.encode_data(prompt))
        written = (*self.tokenizer.encode_data(example.written), self.tokenizer.eos_id)
        return Trajectory(
            question=example.question,
            protocol="generator",
            segments=(
                Segment(Author.ENVIRONMENT, "prompt", self.tokenizer.decode(prompt_ids), prompt_ids),
                Segment(Author.AGENT, "", self.tokenizer.decode(written), written, (0.0,) * len(written)),
            ),
            searches=(),
            stop=StopReason.COMPLETE,
        )


# Corpus sampler: examples from a user's corpus, by questions that were made from it or that tell their path.


class CorpusSampler(ExampleSampler):
    """Samples examples from a corpus.

    Passages are `passages`, as they are shown: cut to the length that an agent reads. A question is left out when the
    cut passages no longer state its path.
    """

    def __init__(self, passages: Corpus, questions: Sequence[Question]) -> None:
        self._passages = passages
        self._supported = list(filter(self._is_supported, questions))
        self._questions = [question for question in self._supported if has_plan(question)]

    @property
    def corpus(self) -> Corpus:
        return self._passages

    @property
    def questions(self) -> list[Question]:
        return self._questions

    @property
    def supported(self) -> list[Question]:
        return self._supported

    def draw_question(self, rng: random.Random) -> Question:
        """Draw a number of hops by the square root of its questions, so that long ones are not lost among the short."""
        weights = [len(questions) ** 0.5 for questions in self._by_hops.values()]
        return rng.choice(rng.choices(list(self._by_hops.values()), weights)[0])

    @cached_property
    def _by_hops(self) -> dict[int, list[Question]]:
        by_hops: defaultdict[int, list[Question]] = defaultdict(list)
        for question in self._questions:
            by_hops[question.hops or 0].append(question)
        return by_hops

    @cached_property
    def facts(self) -> dict[str, list[StatedFact]]:
        facts_by_id: defaultdict[str, dict[StatedFact, None]] = defaultdict(dict)
        for step in (step for question in self._questions for step in plan_of(question)):
            title = self.corpus.by_id(step.gold_id).title
            facts_by_id[step.gold_id][StatedFact(title, *fact_of(step, title))] = None
        return {ident: list(facts) for ident, facts in facts_by_id.items()}

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for ident, facts in self.facts.items():
            kinds[facts[0].relation].append(ident)
        return kinds

    def _is_supported(self, question: Question) -> bool:
        """Whether a question is answered by gold passages of the corpus, along its path if it has one."""
        if not question.answerable or not question.gold_ids or not all(map(self.corpus.has, question.gold_ids)):
            return False
        steps = plan_of(question) if has_plan(question) else []
        return all(self.corpus.has(step.gold_id) and self._states(step) for step in steps)

    def _states(self, step: Step) -> bool:
        """Whether the passage, as it is shown, has the value of the step."""
        passage = self.corpus.by_id(step.gold_id)
        _, value = fact_of(step, passage.title)
        return f" {value.casefold()}" in spaced(passage.text.casefold())
