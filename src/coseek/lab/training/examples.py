"""Synthetic examples: training data of a laptop model that reads passages: questions with gold and other passages.

They come from a laptop world, or from questions with a known path over a user's corpus. An example is made when it is
drawn, with its passages in a new random order. The other passages are BM25's hits for the question: look-alikes,
namesakes and former values. A drill has 0 hops: its question lists names, each with a relation, and its answer states
these facts. It teaches to find the passage of a name and the fact in it, before questions must be understood.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, has_plan, plan_of
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.graders.generator import Generator
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
"""Share of a generator's examples with known facts, if the world has any."""
OF_ANOTHER_KIND = 0.3
"""Share of drills in which one entity is of a random kind."""


@dataclass(frozen=True)
class SyntheticExample:
    """A question, the passages that answer it, and the target text."""

    question: Question
    passages: tuple[Passage, ...]
    written: str


@dataclass(frozen=True)
class ExampleSampler:
    """Samples examples from one corpus."""

    corpus: Corpus
    supported: Sequence[Question]
    """Answerable questions whose gold passages are in the corpus, with a plan or without."""
    facts: Mapping[str, Sequence[StatedFact]]
    """Passage id → its facts."""
    alike: Mapping[str, Sequence[str]]
    """Kind → ids of passages with facts that are easily confused."""
    balanced: bool = False
    """Draw a number of hops by the square root of its number of questions, so that long questions are not too rare."""

    @classmethod
    def of_world(cls, world: World, split: str) -> "ExampleSampler":
        """The questions of a laptop world, with all of its facts."""
        facts: dict[str, list[StatedFact]] = {}
        kinds: dict[str, list[str]] = {}
        for entity in world.oracle.facts.values():
            facts[entity.id] = [StatedFact(entity.title, fact.noun, fact.value) for fact in entity.facts]
            if entity.facts and world.corpus.has(entity.id):
                kinds.setdefault(entity.kind, []).append(entity.id)
        answerable = [question for question in world.questions[split] if question.answerable]
        return cls(world.corpus, answerable, facts, kinds)

    @classmethod
    def of_corpus(cls, passages: Corpus, questions: Sequence[Question]) -> "ExampleSampler":
        """The questions of a user's corpus, with the facts of their paths. `passages` are cut to the length that an
        agent reads; questions whose path they no longer state are skipped."""
        supported = [question for question in questions if _is_supported(question, passages)]
        facts: defaultdict[str, dict[StatedFact, None]] = defaultdict(dict)
        for step in (step for question in supported if has_plan(question) for step in plan_of(question)):
            title = passages.by_id(step.gold_id).title
            facts[step.gold_id][StatedFact(title, *fact_of(step, title))] = None
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for ident, stated in facts.items():
            kinds[next(iter(stated)).relation].append(ident)
        return cls(passages, supported, {ident: [*stated] for ident, stated in facts.items()}, kinds, balanced=True)

    @cached_property
    def questions(self) -> list[Question]:
        """The supported questions with a plan."""
        return [question for question in self.supported if has_plan(question)]

    @cached_property
    def _by_hops(self) -> list[list[Question]]:
        by_hops: defaultdict[int, list[Question]] = defaultdict(list)
        for question in self.questions:
            by_hops[question.hops or 0].append(question)
        return [*by_hops.values()]

    def draw_question(self, rng: random.Random) -> Question:
        """Draw a question with a plan."""
        if not self.balanced:
            return rng.choice(self.questions)
        weights = [len(questions) ** 0.5 for questions in self._by_hops]
        return rng.choice(rng.choices(self._by_hops, weights)[0])

    @cached_property
    def found(self) -> dict[str, list[Passage]]:
        """Text of a question → BM25's top passages for it. Made and own questions may share ids."""
        texts = [question.question for question in self.supported]
        lists = Bm25.over(self.corpus).search(texts, NEIGHBOURS)
        return {text: [hit.passage for hit in hits] for text, hits in zip(texts, lists, strict=True)}

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """Relation of a question's last step → all its values."""
        values: defaultdict[str, list[str]] = defaultdict(list)
        for last_step in (plan_of(question)[-1] for question in self.questions):
            values[last_step.relation].append(last_step.sub_answer)
        return values

    def others(self, question: Question) -> list[Passage]:
        """BM25's passages for a question, without its gold ones."""
        return [passage for passage in self.found[question.question] if passage.id not in question.gold_ids]

    def passages(self, question: Question, count: int, rng: random.Random) -> tuple[Passage, ...]:
        """The gold passages and others, `count` in total, in random order. With `count` 1 the gold ones alone, else
        with at least one other, if there is one."""
        gold, others = [self.corpus.by_id(ident) for ident in question.gold_ids], self.others(question)
        other_count = max(1, count - len(gold)) if count > 1 else 0
        passages = gold + rng.sample(others, min(len(others), other_count))
        rng.shuffle(passages)
        return tuple(passages)

    def example_of(self, question: Question, count: int, rng: random.Random) -> SyntheticExample:
        """Make an example of a question with a plan, with `count` passages."""
        passages = self.passages(question, count, rng)
        return SyntheticExample(question, passages, rationale(question, passages, self.facts))

    def recalled(self, most: int, rng: random.Random) -> SyntheticExample:
        """An example of a known question, with at most `most` passages, none of which is gold."""
        question = rng.choice(self.questions)
        return SyntheticExample(question, tuple(self.others(question)[:most]), recalled(question))

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


def _is_supported(question: Question, passages: Corpus) -> bool:
    """Whether the corpus has the gold passages of an answerable question, and they state its path if it has one."""
    if not question.answerable or not question.gold_ids or not all(map(passages.has, question.gold_ids)):
        return False
    for step in plan_of(question) if has_plan(question) else ():
        passage = passages.by_id(step.gold_id) if passages.has(step.gold_id) else None
        if passage is None:
            return False
        _, value = fact_of(step, passage.title)
        if f" {value.casefold()}" not in spaced(passage.text.casefold()):
            return False
    return True


def drill_of(facts: Sequence[tuple[int, StatedFact]]) -> SyntheticExample:
    """Ask for facts by name and relation. `facts`: (number of the passage, fact). The example has no passages yet."""
    names = " ;".join(f" {fact.title.strip()} , {fact.relation}" for _, fact in facts)
    lines = [line(fact.title, number, (fact.relation, fact.value)) for number, fact in facts]
    return SyntheticExample(Question("drill", names.strip(), hops=0), (), "".join(lines))


@dataclass(frozen=True)
class ExampleWriter:
    """Draws examples and writes them as token ids, with the generator's prompt."""

    samplers: Sequence[ExampleSampler]
    generator: Generator
    tokenizer: Tokenizer
    phases: Sequence[Phase]
    passages: tuple[int, int]
    """Minimum and maximum number of passages in an example."""
    known: ExampleSampler | None = None
    """Questions to answer without passages."""

    @cached_property
    def everything(self) -> list[tuple[ExampleSampler, Question]]:
        """All questions, to draw from if the phase has no known number of hops."""
        return [(sampler, question) for sampler in self.samplers for question in sampler.questions]

    @cached_property
    def by_hops(self) -> dict[int, list[tuple[ExampleSampler, Question]]]:
        by_hops: dict[int, list[tuple[ExampleSampler, Question]]] = {0: []}
        for sampler, question in self.everything:
            by_hops.setdefault(question.hops or 0, []).append((sampler, question))
        return by_hops

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
        """Make a trajectory of the prompt and the target text."""
        prompt = self.generator.context(example.question.question, example.passages).prompt
        target_ids = [*self.tokenizer.encode_data(example.written), self.tokenizer.eos_id]
        turns = [(self.tokenizer.encode_data(prompt), target_ids)]
        return trajectory_of(turns, example.question, "generator", self.tokenizer)


def trajectory_of(
    turns: Sequence[tuple[list[int], list[int]]], question: Question, protocol: str, tokenizer: Tokenizer
) -> Trajectory:
    """A trajectory of (prompt, target) turns of ids: prompts are the environment's, targets are learnt."""
    segments: list[Segment] = []
    for prompt_ids, target_ids in turns:
        segments += [
            Segment(Author.ENVIRONMENT, "prompt", tokenizer.decode(prompt_ids), tuple(prompt_ids)),
            Segment(Author.AGENT, "", tokenizer.decode(target_ids), tuple(target_ids), (0.0,) * len(target_ids)),
        ]
    return Trajectory(question, protocol, tuple(segments), (), StopReason.COMPLETE)
