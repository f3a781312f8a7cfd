"""Corpus sampler: examples from a user's corpus, by questions that were made from it or that tell their path."""

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.training.sft.synthetic import ExampleSampler
from coseek.world.passages import spaced
from coseek.world.plan import Step, has_plan, plan_of
from coseek.world.rationales import StatedFact, fact_of


class CorpusSampler(ExampleSampler):
    """Samples examples from a corpus.

    Passages are `passages`, as they are shown: cut to the length that an agent reads. A question is left out when the
    cut passages no longer state its path.
    """

    def __init__(self, passages: Corpus, questions: Sequence[Question]) -> None:
        self._passages = passages
        known = [one for one in questions if one.gold_ids and all(map(passages.has, one.gold_ids))]
        self._supported = [one for one in known if one.answerable and (not has_plan(one) or self._follows(one))]
        self._questions = [one for one in self._supported if has_plan(one)]

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
        found: defaultdict[int, list[Question]] = defaultdict(list)
        for question in self._questions:
            found[question.hops or 0].append(question)
        return found

    @cached_property
    def facts(self) -> dict[str, list[StatedFact]]:
        found: defaultdict[str, dict[StatedFact, None]] = defaultdict(dict)
        for step in (step for question in self._questions for step in plan_of(question)):
            title = self.corpus.by_id(step.gold_id).title
            found[step.gold_id][StatedFact(title, *fact_of(step, title))] = None
        return {ident: list(facts) for ident, facts in found.items()}

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        for ident, facts in self.facts.items():
            kinds[facts[0].relation].append(ident)
        return kinds

    def _follows(self, question: Question) -> bool:
        return all(self.corpus.has(step.gold_id) and self._states(step) for step in plan_of(question))

    def _states(self, step: Step) -> bool:
        """Whether the passage, as it is shown, has the value of the step."""
        passage = self.corpus.by_id(step.gold_id)
        _, value = fact_of(step, passage.title)
        return f" {value.casefold()}" in spaced(passage.text.casefold())
